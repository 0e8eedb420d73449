// Search and order of the rows in a file. The file can be read without it.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const box = document.getElementById("rows");
  const rows = [...box.children];
  const search = document.getElementById("search");
  const order = document.getElementById("order");
  const found = document.getElementById("found");

  const value = (row, name) => {
    const number = Number.parseFloat(row.dataset[name]);
    return Number.isNaN(number) ? -Infinity : number;
  };

  // a link to a row opens it
  const open = () => {
    const row = rows.find((each) => each.id && `#${each.id}` === location.hash);
    if (row) {
      row.hidden = false;
      row.open = true;
      row.scrollIntoView();
    }
  };
  window.addEventListener("hashchange", open);
  open();

  search.addEventListener("input", () => {
    const text = search.value.toLowerCase();
    let count = 0;
    for (const row of rows) {
      row.hidden = text !== "" && !row.textContent.toLowerCase().includes(text);
      count += row.hidden ? 0 : 1;
    }
    found.textContent = `${count} of ${rows.length} rows`;
  });

  order.addEventListener("change", () => {
    const name = order.value;
    const direction = name === "position" ? 1 : -1;
    rows.sort((a, b) => direction * (value(a, name) - value(b, name)) || value(a, "position") - value(b, "position"));
    box.append(...rows);
  });
});
