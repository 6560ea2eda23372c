// The clustering's settings: each with its value, and a button that brings back the run's own.

import { change, listen, state } from "./state.js";

const INFINITE = "inf";
const NAMES = { queries: "q", keys: "k", values: "v", last: "last" };

export function makeControls() {
  const { limits } = state.start;
  const most = limits.position_weight[1];
  const place = document.getElementById("controls");
  place.append(
    makeSlider("position_weight", "λ_pos", "weight of the position", {
      min: 0, max: most + 0.25, step: 0.25,
      read: (number) => (number > most ? INFINITE : number),
      write: (value) => (value === INFINITE ? most + 0.25 : value),
    }),
    makeSlider("k_start", "K_start", "clusters before any merge",
      { min: limits.k_start[0], max: limits.k_start[1], step: 1 }),
    makeSlider("sharpness", "Sharpness", "of the assignments",
      { min: limits.sharpness[0], max: limits.sharpness[1], step: 1 }),
    makeTokens(),
    makeDraw(),
  );
  document.getElementById("reset-all").addEventListener("click", () => {
    change("values", { values: { ...own() }, seed: 0 });
  });
}

const own = () => state.start.models[0].defaults;

function setValue(name, value) {
  change("values", { values: { ...state.values, [name]: value } });
}

function say(value) {
  return value === INFINITE ? "∞" : String(Math.round(value * 100) / 100);
}

function makeSlider(name, title, what, { min, max, step, read = Number, write = Number }) {
  const id = `slider-${name}`;
  const row = makeRow(title, what, id, name);
  const slider = document.createElement("input");
  Object.assign(slider, { type: "range", id, min, max, step });
  slider.addEventListener("input", () => setValue(name, read(Number(slider.value))));
  row.append(slider);
  const show = () => {
    const value = state.values[name];
    slider.value = write(value);
    slider.setAttribute("aria-valuetext", say(value));
    row.querySelector("output").textContent = say(value);
  };
  listen("values", show);
  show();
  return row;
}

function makeRow(title, what, id, name) {
  const row = document.createElement("div");
  row.className = "control";
  row.innerHTML = `<div class="words"><label></label> <span class="soft small"></span>
    <output></output></div>`;
  const label = row.querySelector("label");
  label.textContent = title;
  label.htmlFor = id;
  row.querySelector(".soft").textContent = what;
  row.querySelector("output").htmlFor.add(id);
  row.querySelector(".words").append(makeReset(title, name));
  return row;
}

function makeReset(title, name) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "reset";
  button.textContent = "↺";
  button.addEventListener("click", () => setValue(name, own()[name]));
  const show = () => {
    button.disabled = state.values[name] === own()[name];
    button.setAttribute("aria-label", `Reset ${title} to ${NAMES[own()[name]] ?? say(own()[name])}`);
  };
  listen("values", show);
  show();
  return button;
}

function makeTokens() {
  const row = document.createElement("fieldset");
  row.className = "control";
  row.innerHTML = `<legend class="visually-hidden">Tokens that are clustered</legend>
    <div class="words"><span>Tokens</span> <span class="soft small">of the last block</span>
    <output></output></div><div class="choices"></div>`;
  row.querySelector(".words").append(makeReset("tokens", "tokens"));
  const inputs = state.start.limits.tokens.map((kind) => {
    const label = document.createElement("label");
    const input = document.createElement("input");
    Object.assign(input, { type: "radio", name: "tokens", value: kind });
    input.setAttribute("aria-label", kind === "last" ? "last tokens" : kind);
    input.addEventListener("change", () => setValue("tokens", kind));
    const text = document.createElement("span");
    text.textContent = NAMES[kind];
    label.append(input, text);
    row.querySelector(".choices").append(label);
    return input;
  });
  const show = () => {
    for (const input of inputs) input.checked = input.value === state.values.tokens;
    row.querySelector("output").textContent = state.values.tokens;
  };
  listen("values", show);
  show();
  return row;
}

// The starting tokens are drawn by chance: another draw shows how much hangs on it.
function makeDraw() {
  const row = document.createElement("div");
  row.className = "control words";
  row.innerHTML = `<span>Start</span> <span class="soft small">at random</span>
    <output></output><button type="button" id="draw">Draw again</button>`;
  row.querySelector("button").addEventListener("click", () => {
    change("values", { seed: state.seed + 1 });
  });
  const show = () => { row.querySelector("output").textContent = `no. ${state.seed + 1}`; };
  listen("values", show);
  show();
  return row;
}
