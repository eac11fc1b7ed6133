const text = cell => [...cell.childNodes].map(n => n.textContent).join(" ").replace(/\s+/g, " ").trim();

function sortBy(table, at) {
  const heads = [...table.tHead.rows[0].cells];
  const down = heads[at].getAttribute("aria-sort") === "ascending";
  heads.forEach(head => head.setAttribute("aria-sort", "none"));
  heads[at].setAttribute("aria-sort", down ? "descending" : "ascending");
  const read = row => row.cells[at].dataset.value ?? text(row.cells[at]);
  table.querySelectorAll("tr.family").forEach(row => row.remove());
  const rows = [...table.tBodies[0].rows].sort((a, b) => {
    const [x, y] = [read(a), read(b)];
    if (x === "" || y === "") return (x === "") - (y === "");
    const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
    return down ? -order : order;
  });
  table.tBodies[0].append(...rows);
}

const latex = said => said.replace(/[\\&%$#_{}~^]/g, c => ({ "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}" })[c] ?? "\\" + c)
  .replace(/</g, "$<$").replace(/>/g, "$>$").replace(/↓/g, "$\\downarrow$").replace(/↑/g, "$\\uparrow$")
  .replace(/→/g, "$\\to$").replace(/±/g, "$\\pm$").replace(/δ/g, "$\\delta$");

const formats = {
  Markdown(heads, rows) {
    const line = cells => "| " + cells.map(c => c.said.replace(/\|/g, "\\|")).map((c, i) => cells[i].best ? `**${c}**` : c).join(" | ") + " |";
    return [line(heads), "|" + "---|".repeat(heads.length), ...rows.map(line)].join("\n") + "\n";
  },
  LaTeX(heads, rows) {
    const line = cells => cells.map(c => c.best ? `\\textbf{${latex(c.said)}}` : latex(c.said)).join(" & ") + " \\\\";
    const columns = heads.map(head => head.left ? "l" : "r").join("");
    return [`\\begin{tabular}{${columns}}`, "\\toprule", line(heads), "\\midrule", ...rows.map(line), "\\bottomrule", "\\end{tabular}"].join("\n") + "\n";
  },
  CSV(heads, rows) {
    const harmless = said => /^[=+\-@\t\r]/.test(said) && !/^[+-]?[\d.,]+%?( |$)/.test(said) ? `'${said}` : said; // no formula
    const quoted = said => /[",\n]/.test(said) ? `"${said.replace(/"/g, '""')}"` : said;
    return [heads, ...rows].map(cells => cells.map(c => quoted(harmless(c.said))).join(",")).join("\n") + "\n";
  },
};

function content(table) {
  const cells = row => [...row.cells].map(cell => ({ said: text(cell), best: !!cell.querySelector(".best"), left: getComputedStyle(cell).textAlign === "left" }));
  return [cells(table.tHead.rows[0]), [...table.tBodies[0].rows].filter(row => !row.matches(".family")).map(cells)];
}

async function copy(said, button) {
  try { await navigator.clipboard.writeText(said); } catch {
    const area = document.body.appendChild(Object.assign(document.createElement("textarea"), { value: said }));
    area.select(); document.execCommand("copy"); area.remove();
  }
  const name = button.textContent;
  button.textContent = "copied"; setTimeout(() => { button.textContent = name; }, 1200);
}

for (const sheet of document.querySelectorAll(".sheet")) {
  const table = sheet.querySelector("table"), tools = document.createElement("div");
  [...table.tHead.rows[0].cells].forEach((head, at) => {
    head.setAttribute("aria-sort", "none");
    head.querySelector("button").addEventListener("click", () => sortBy(table, at));
  });
  tools.className = "tools";
  tools.append("copy as");
  for (const [name, write] of Object.entries(formats)) {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: name });
    button.addEventListener("click", () => copy(write(...content(table)), button));
    tools.append(button);
  }
  sheet.append(tools);
}
addEventListener("hashchange", () => { const at = document.querySelector(location.hash || "#top"); if (at?.matches("details")) at.open = true; });
