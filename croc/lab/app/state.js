// What the page shows, in one place. Parts read it, change it with `change` and listen to topics.

export const state = {
  start: null, // models, limits and scenes, from the server
  picture: null, // { id, name, width, height }
  boxes: [], // two of [x, y, width, height], whole pixels of the photograph
  values: {}, // position_weight, k_start, sharpness, tokens
  seed: 0, // of the draw of the starting tokens
  heads: [], // the chosen head of each model
  mode: "clusters", // or "similarity", "merging"
  patch: null, // { model, view, index }: the one whose similarities are shown
  step: 0, // of the merging
  pointed: null, // { model, view, index }: the patch under the pointer or the keyboard's cursor
  clusters: [], // the last answer for each model, and so on
  similarity: [],
  traces: [],
};

export const NAMES = ["A", "B"]; // of the crops
export const ARROWS = {
  ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
};
export const clamp = (value, least, most) => Math.min(Math.max(value, least), most);

const listeners = [];

export function listen(topics, listener) {
  listeners.push([topics.split(" "), listener]);
}

// Topics: picture, boxes, values, head, mode, pointed, answer, trace.
export function change(topic, values = {}) {
  Object.assign(state, values);
  for (const [topics, listener] of listeners) if (topics.includes(topic)) listener();
}

// What is sent for a model.
export const query = (model) => ({
  model, picture: state.picture.id, boxes: state.boxes, seed: state.seed, ...state.values,
});
