// Draws the reliability diagram of a run from the bins in its report.

const SIZE = 320, LEFT = 44, TOP = 8, BOTTOM = 40;
const NS = "http://www.w3.org/2000/svg";

const x = (value) => LEFT + value * SIZE;
const y = (value) => TOP + (1 - value) * SIZE;

export function add(parent, tag, attributes, text) {
  const node = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

// Adds the diagram to an element; returns a function that moves the line of the threshold.
export function draw(parent, bins) {
  const svg = add(parent, "svg", {
    viewBox: `0 0 ${LEFT + SIZE + 12} ${TOP + SIZE + BOTTOM}`, role: "img",
    "aria-label": "Reliability diagram: accuracy of the answers in each interval of confidence. "
      + bins.filter((bin) => bin.n).map((bin) =>
        `${bin.low} to ${bin.high}: ${Math.round(bin.accuracy * 100)}% of ${bin.n} right`).join("; "),
  });
  for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
    add(svg, "line", { class: "axis", x1: x(0), x2: x(1), y1: y(tick), y2: y(tick) });
    add(svg, "text", { x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end" }, tick);
    add(svg, "text", { x: x(tick), y: y(0) + 16, "text-anchor": "middle" }, tick);
  }
  const most = Math.max(...bins.map((bin) => bin.n));
  for (const bin of bins.filter((bin) => bin.n)) {
    const bar = add(svg, "rect", {
      class: "bin", x: x(bin.low) + 1, width: (bin.high - bin.low) * SIZE - 2,
      y: y(bin.accuracy), height: y(0) - y(bin.accuracy),
      "fill-opacity": 0.25 + 0.7 * bin.n / most,
    });
    const percent = Math.round(bin.accuracy * 100);
    add(bar, "title", {}, `${bin.n} answers from ${bin.low} to ${bin.high}: ${percent}% right`);
  }
  add(svg, "line", { class: "ideal", x1: x(0), y1: y(0), x2: x(1), y2: y(1) });
  const line = add(svg, "line", { class: "cut", y1: y(0), y2: y(1) });
  add(svg, "text", { x: x(0.5), y: y(0) + 34, "text-anchor": "middle" }, "confidence");
  const rotated = `rotate(-90 12 ${y(0.5)})`;
  add(svg, "text", { x: 12, y: y(0.5), "text-anchor": "middle", transform: rotated }, "accuracy");
  return (threshold) => {
    line.setAttribute("x1", x(threshold));
    line.setAttribute("x2", x(threshold));
  };
}
