// Requests to the server, and the one place where a message appears.

const note = () => document.getElementById("message");

let said = null; // by whom

export function say(message, by = null) {
  note().textContent = message;
  note().hidden = !message;
  said = by;
}

async function fetchJson(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Error("The server does not answer: is `croc app` still running?");
  }
  const page = await answer.json().catch(() => ({ error: `The server answered ${answer.status}.` }));
  if (!answer.ok) throw new Error(page.error ?? `The server answered ${answer.status}.`);
  return page;
}

export const get = (path) => fetchJson(path);

export function upload(file) {
  const form = new FormData();
  form.append("photograph", file, file.name || "pasted");
  return fetchJson("/api/pictures", { method: "POST", body: form });
}

let asking = 0;

// For those who hear the page, and for those who test it: answers are still to come.
function count(change) {
  asking += change;
  document.getElementById("panels").setAttribute("aria-busy", String(asking > 0));
}

// One question at a time; of those that come meanwhile only the last is asked.
export class Lane {
  constructor(path, take) {
    this.path = path;
    this.take = take;
    this.waiting = null;
    this.busy = false;
  }

  ask(question) {
    this.waiting = question;
    if (!this.busy) this.work();
  }

  async work() {
    this.busy = true;
    count(1);
    while (this.waiting) {
      const question = this.waiting;
      this.waiting = null;
      try {
        const started = performance.now();
        const answer = await post(this.path, question);
        if (said === Lane) say(""); // what was wrong is over
        if (!answer.stale) await this.take(answer, question, performance.now() - started);
      } catch (error) {
        say(error.message, Lane);
      }
    }
    this.busy = false;
    count(-1);
  }
}

const post = (path, page) => fetchJson(path, {
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify(page),
});
