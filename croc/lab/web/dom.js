// Building nodes. Text from the data only ever becomes textContent or an attribute's value.

function make(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function makeSvg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

const swatchOf = (run) => make("span", { class: `swatch ${run.color}`, "aria-hidden": "true" });
