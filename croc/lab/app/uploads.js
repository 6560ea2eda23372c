// Photographs from the user: chosen, dropped or pasted; and the row of those at hand.

import { say, upload } from "./api.js";
import { choosePicture } from "./photograph.js";
import { listen, state } from "./state.js";

const MOST_SHOWN = 8; // uploads, as many as the server holds

const part = (id) => document.getElementById(id);
let uploads = [];

export function makeUploads() {
  part("choose").addEventListener("click", () => part("file").click());
  part("file").addEventListener("change", (event) => {
    take(event.target.files);
    event.target.value = ""; // so that the same file can be chosen again
  });
  document.addEventListener("paste", (event) => {
    if (event.clipboardData?.files.length) take(event.clipboardData.files);
  });
  makeDrop();
  listen("picture", showGallery);
}

function makeDrop() {
  const holdsFiles = (event) => event.dataTransfer?.types.includes("Files");
  document.addEventListener("dragover", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    part("drop").hidden = false;
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) part("drop").hidden = true;
  });
  document.addEventListener("drop", (event) => {
    part("drop").hidden = true;
    if (!holdsFiles(event)) return;
    event.preventDefault(); // the browser would leave the page for the file
    take(event.dataTransfer.files);
  });
}

async function take(files) {
  if (files.length !== 1) return say(files.length ? "One photograph at a time, please." : "");
  const { bytes } = state.start.limits;
  if (files[0].size > bytes) return say(`That file is larger than ${bytes >> 20} MB.`);
  part("stage").classList.add("busy");
  try {
    const picture = await upload(files[0]);
    uploads = [picture, ...uploads].slice(0, MOST_SHOWN);
    say("");
    await choosePicture(picture);
  } catch (error) {
    say(error.message);
  } finally {
    part("stage").classList.remove("busy");
  }
}

function showGallery() {
  part("picture-name").textContent = state.picture.name;
  const focused = document.activeElement?.dataset?.picture;
  const buttons = [...uploads, ...state.start.pictures].map(makeButton);
  part("gallery").replaceChildren(...buttons);
  buttons.find((button) => button.dataset.picture === focused)?.focus();
}

function makeButton(picture) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "thumbnail";
  button.dataset.picture = picture.id;
  button.title = picture.name;
  button.setAttribute("aria-label", picture.name);
  button.setAttribute("aria-pressed", String(picture.id === state.picture.id));
  const image = document.createElement("img");
  image.src = `/api/pictures/${encodeURIComponent(picture.id)}`;
  image.alt = "";
  button.append(image);
  button.addEventListener("click", async () => {
    say("");
    try {
      await choosePicture(picture);
    } catch {
      uploads = uploads.filter((other) => other.id !== picture.id);
      button.remove();
      say("That photograph is no longer held: choose it again.");
    }
  });
  return button;
}
