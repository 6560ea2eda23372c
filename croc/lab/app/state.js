// What the page shows, in one place. Parts read it, change it by `change`, and are told by topic.

export const state = {
  start: null, // what the server said of models, limits and scenes
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

const listeners = [];

export function listen(topics, tell) {
  listeners.push([topics.split(" "), tell]);
}

// Topics: picture, boxes, values, head, mode, pointed, answer, trace.
export function change(topic, values = {}) {
  Object.assign(state, values);
  for (const [topics, tell] of listeners) {
    if (topics.includes(topic)) tell(topic);
  }
}

export const modelCount = () => state.start.models.length;

// The setting that a model is asked about; `inf` stands for an infinite weight, as JSON has none.
export function question(model) {
  return {
    page: PAGE, model, picture: state.picture.id, boxes: state.boxes, seed: state.seed,
    ...state.values,
  };
}

const PAGE = Array.from(crypto.getRandomValues(new Uint8Array(8)), (n) => n.toString(16)).join("");
