// What all charts show in common: part of the axis, cursor, smoothing, and which runs.
class Shared {
  constructor(runs) {
    this.runs = runs;
    this.unit = "steps";
    this.range = null;
    this.cursor = null;
    this.smoothing = 0;
    this.hidden = new Set();
    this.listeners = [];
    this.asked = null;
  }

  get shown() {
    return this.runs.filter((run) => !this.hidden.has(run) && perStep(run, this.unit));
  }

  // Drawn once a frame, however often the pointer moves.
  set(change) {
    Object.assign(this, change);
    const whole = Object.keys(change).some((name) => name !== "cursor");
    if (this.asked !== null) {
      this.asked.whole ||= whole;
      return;
    }
    this.asked = { whole };
    requestAnimationFrame(() => this.tell());
  }

  tell() {
    const { whole } = this.asked;
    this.asked = null;
    for (const listener of this.listeners) listener(whole);
  }

  // Another unit: the same part of the curves, as far as runs agree on it.
  setUnit(unit) {
    const first = this.shown.find((run) => perStep(run, unit));
    const ratio = first ? perStep(first, unit) / perStep(first, this.unit) : 1;
    const range = this.range && this.range.map((edge) => edge * ratio);
    this.set({ unit, range, cursor: null });
  }

  // From the first to the last of anything that is shown, in any chart.
  get full() {
    let [low, high] = [Infinity, -Infinity];
    for (const run of this.shown) {
      for (const { x } of Object.values(run.curves)) {
        low = Math.min(low, x[0] * perStep(run, this.unit));
        high = Math.max(high, x[x.length - 1] * perStep(run, this.unit));
      }
    }
    if (low > high) return [0, 1];
    return low === high ? [low - 0.5, high + 0.5] : [low, high];
  }

  get seen() {
    return this.range ?? this.full;
  }

  zoom(factor, centre) {
    const [low, high] = this.seen;
    this.show(centre - (centre - low) * factor, centre + (high - centre) * factor);
  }

  show(low, high) {
    const [first, last] = this.full;
    const span = Math.max(Math.min(high - low, last - first), (last - first) / 5000);
    const start = Math.min(Math.max(low, first), last - span);
    const all = span >= (last - first) * 0.999;
    this.set({ range: all ? null : [start, start + span] });
  }
}
