// Photographs from the user: chosen, dropped or pasted; and the row of thumbnails.

import { fetchJson, showMessage } from "./api.js";
import { choosePicture } from "./photograph.js";
import { listen, state } from "./state.js";

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
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  document.addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    part("drop").hidden = false;
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) part("drop").hidden = true;
  });
  document.addEventListener("drop", (event) => {
    part("drop").hidden = true;
    if (!hasFiles(event)) return;
    event.preventDefault(); // the browser would leave the page for the file
    take(event.dataTransfer.files);
  });
  listen("picture", showGallery);
}

async function take(files) {
  if (files.length !== 1) return showMessage(files.length ? "One photograph at a time, please." : "");
  part("stage").classList.add("busy");
  try {
    const name = encodeURIComponent(files[0].name || "pasted");
    const sent = { method: "POST", body: files[0] };
    const picture = await fetchJson(`/api/pictures?name=${name}`, sent);
    uploads = [picture, ...uploads];
    showMessage("");
    await choosePicture(picture);
  } catch (error) {
    showMessage(error.message);
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
  const button = make("button", { type: "button", class: "thumbnail", "data-picture": picture.id,
    title: picture.name, "aria-label": picture.name,
    "aria-pressed": String(picture.id === state.picture.id),
  }, make("img", { src: `/api/pictures/${picture.id}`, alt: "" }));
  button.addEventListener("click", async () => {
    showMessage("");
    try {
      await choosePicture(picture);
    } catch {
      uploads = uploads.filter((other) => other.id !== picture.id);
      button.remove();
      showMessage("That photograph is no longer available: upload it again.");
    }
  });
  return button;
}
