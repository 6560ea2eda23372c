// Requests to the server, and the page's message line.

const note = document.getElementById("message");
let fromLane = false; // whether the shown message is about a query

export function showMessage(message, lane = false) {
  note.textContent = message;
  note.hidden = !message;
  fromLane = lane;
}

export async function fetchJson(path, options) {
  const answer = await fetch(path, options).catch(() => {
    throw new Error("The server does not answer: is `croc app` still running?");
  });
  const content = await answer.json().catch(() => ({}));
  const { ok, status } = answer;
  const message = content.error ?? `The server answered ${status}.`;
  if (!ok) throw Object.assign(new Error(message), { status });
  return content;
}

let pending = 0;

// For screen readers and tests: whether answers are pending.
export function count(change) {
  pending += change;
  document.querySelector("[aria-busy]").setAttribute("aria-busy", String(pending > 0));
}

// Sends one query at a time; of those made in the meantime, only the last is sent.
export function makeLane(path, take) {
  let waiting = null;
  let busy = false;
  return async (query) => {
    waiting = query;
    if (busy) return;
    busy = true;
    count(1);
    while (waiting) {
      const sent = waiting;
      waiting = null;
      try {
        const started = performance.now();
        const answer = await fetchJson(path, { method: "POST", body: JSON.stringify(sent) });
        if (fromLane) showMessage(""); // the problem is over
        await take(answer, sent, performance.now() - started);
      } catch (error) {
        showMessage(error.message, true);
      }
    }
    busy = false;
    count(-1);
  };
}
