// Puts the parts together, and queries the server whenever an answer may have changed.

import { fetchJson, makeLane, showMessage } from "./api.js";
import { makeControls } from "./controls.js";
import { makeMerging } from "./merging.js";
import { makePanels, samePatch } from "./panels.js";
import { choosePicture, showPhotograph } from "./photograph.js";
import { change, listen, query, state } from "./state.js";
import { followColors, readTiles } from "./tiles.js";
import { makeUploads } from "./uploads.js";

const REST_MS = 120; // the merging is requested when boxes and sliders have not moved for so long

async function begin() {
  state.start = await fetchJson("/api/start");
  const { models, pictures } = state.start;
  Object.assign(state, { values: { ...models[0].defaults }, heads: models.map(() => 0) });
  document.getElementById("models").textContent = models
    .map(({ name, view_px, grid }) => `${name}: crops of ${view_px}² px, ${grid} × ${grid} patches`)
    .join(" · ");
  document.getElementById("explorer").classList.toggle("two", models.length > 1);
  makePanels();
  makeControls();
  makeMerging();
  makeUploads();
  showPhotograph();
  makeQueries(models);
  await choosePicture(pictures[0]);
}

function makeQueries(models) {
  const lanes = models.map((_, model) => makeLanes(model));
  // The last tokens have one head, whichever was chosen.
  const head = (model) => (state.values.tokens === "last" ? 0 : state.heads[model]);
  let resting = null;
  listen("picture boxes values", () => lanes.forEach(({ clusters }, model) => clusters(query(model))));
  listen("picture boxes values head mode", () => {
    if (state.mode !== "similarity") return;
    const { view } = state.patch;
    lanes.forEach(({ similarity }, model) => similarity({
      ...query(model), head: head(model), view, patch: samePatch(state.patch, models[model].grid),
    }));
  });
  listen("picture boxes values head", () => {
    clearTimeout(resting);
    resting = setTimeout(() => lanes.forEach(({ trace }, model) =>
      trace({ ...query(model), head: head(model) })), REST_MS);
  });
}

function makeLanes(model) {
  // Unless the photograph has changed since the query.
  const keep = (topic, name, sent, answer) => {
    if (sent.picture !== state.picture.id) return;
    const { models } = state.start;
    change(topic, { [name]: models.map((_, n) => (n === model ? answer : state[name][n])) });
  };
  return {
    clusters: makeLane("/api/clusters", async (answer, sent, elapsed) => {
      const tiles = await readTiles(answer.maps, answer.grid);
      const before = state.clusters[model]?.heads ?? [];
      answer.heads.forEach((head, number) => {
        const old = before.length === answer.heads.length ? before[number].painted : null;
        head.painted = followColors(tiles, 2 * number, head.k, sent.boxes, state.picture, old);
      });
      keep("answer", "clusters", sent, { ...answer, tiles });
      document.getElementById("timing").textContent = `Answered in ${Math.round(elapsed)} ms.`;
    }),
    similarity: makeLane("/api/similarity", async (answer, sent) => {
      const crops = await readTiles(answer.crops, answer.grid);
      const whole = await readTiles(answer.whole, answer.grid);
      keep("answer", "similarity", sent, { ...answer, crops, whole });
    }),
    trace: makeLane("/api/trace", async (answer, sent) => {
      const tiles = await readTiles(answer.maps, answer.grid);
      keep("trace", "traces", sent, { ...answer, tiles });
    }),
  };
}

begin().catch((error) => showMessage(error.message));
