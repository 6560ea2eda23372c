// Building nodes. Text from the data only ever becomes textContent or an attribute's value.

const SVG = "http://www.w3.org/2000/svg";

function make(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  return fill(node, attributes, children);
}

function makeSvg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

const colourOf = (run) => `run-${run.colour}${run.dashed ? " dashed" : ""}`;
const swatchOf = (run) => make("span", { class: `swatch ${colourOf(run)}`, "aria-hidden": "true" });
