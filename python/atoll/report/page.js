// Shows the values at the place under the pointer, or selected with the arrow keys.
for (const figure of document.querySelectorAll("figure.chart")) {
  const data = JSON.parse(figure.querySelector("script").textContent);
  const picture = figure.querySelector("svg[role]");
  const cursor = picture.querySelector(".cursor");
  const told = figure.querySelector("output");
  const first = data.x[0];
  const span = data.x[data.x.length - 1] - first || 1;
  let at = data.x.length - 1;
  const text = (value) => (value === null ? "-" : Number(value.toPrecision(4)).toLocaleString("en"));
  const show = (place) => {
    at = Math.min(data.x.length - 1, Math.max(0, place));
    const x = data.x.length > 1 ? (1000 * (data.x[at] - first)) / span : 500;
    cursor.setAttribute("d", `M${x} 0V1000`);
    const values = data.series.map(([name, all]) => `${data.series.length > 1 ? name + " " : ""}${text(all[at])}`);
    told.textContent = `${text(data.x[at])}: ${values.join(", ")} ${data.unit}`;
  };
  const hide = () => {
    cursor.setAttribute("d", "");
    told.textContent = "";
  };
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const wanted = first + (span * (event.clientX - box.left)) / box.width;
    let best = 0;
    data.x.forEach((x, place) => {
      if (Math.abs(x - wanted) < Math.abs(data.x[best] - wanted)) best = place;
    });
    show(best);
  });
  picture.addEventListener("pointerleave", hide);
  picture.addEventListener("blur", hide);
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) {
      event.preventDefault();
      show(at + step);
    }
  });
}
