"use strict";
// A button that copies the flags, where the browser can.
for (const flags of document.querySelectorAll("pre.flags")) {
  if (!navigator.clipboard) break;
  const button = document.createElement("button");
  Object.assign(button, { type: "button", textContent: "Copy the flags" });
  button.onclick = async () => {
    await navigator.clipboard.writeText(flags.textContent);
    button.textContent = "Copied";
  };
  flags.after(button);
}
// Unpacks plotly and the figures, and draws one after the other, so that the page answers in between.
(async () => {
  const unpack = async (id) => {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (one) => one.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };
  const pause = () => new Promise((done) => setTimeout(done));
  await pause();
  const url = URL.createObjectURL(new Blob([await unpack("plotly")], { type: "text/javascript" }));
  await new Promise((done, failed) => {
    const script = document.createElement("script");
    Object.assign(script, { src: url, onload: done, onerror: failed });
    document.head.append(script);
  });
  URL.revokeObjectURL(url);

  const figures = JSON.parse(await unpack("figures"));
  const touch = matchMedia("(pointer: coarse)").matches;
  const settings = { displaylogo: false, responsive: true, displayModeBar: touch ? false : "hover" };
  for (const [name, { data, layout }] of Object.entries(figures)) {
    const place = document.getElementById(`figure-${name}`);
    const room = place.clientWidth;
    if (room < 500) layout.height += 30 + 12 * data.length; // the legend has more lines
    if (touch) layout.dragmode = false; // a finger scrolls the page
    if (layout.meta && layout.meta.label_width > room - 60) for (const trace of data) delete trace.texttemplate;
    place.replaceChildren();
    await Plotly.newPlot(place, data, layout, settings);
    place.style.minHeight = "";
    place.dataset.rendered = "yes";
    await pause();
  }
  document.documentElement.dataset.rendered = "all";

  const plots = [...document.querySelectorAll(".plot[data-rendered]")];
  const paper = 660;
  const crowded = plots.filter((one) => one.data[0].texttemplate && one.layout.meta?.label_width > paper - 60);
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const one of folded) one.open = true;
    for (const one of plots) Plotly.relayout(one, { width: paper, autosize: false });
    for (const one of crowded) Plotly.restyle(one, { texttemplate: "" });
  });
  addEventListener("afterprint", () => {
    for (const one of folded) one.open = false;
    for (const one of plots) Plotly.relayout(one, { width: null, autosize: true });
    for (const one of crowded) Plotly.restyle(one, { texttemplate: "%{text}" });
  });
})().catch((error) => {
  document.documentElement.dataset.rendered = "failed";
  console.error(error);
});
