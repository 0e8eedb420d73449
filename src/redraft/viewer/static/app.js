// Keys, copying, and following a run in progress. Every page works without this file.
"use strict";

const isTyping = (element) => element.closest("input, textarea, select, [contenteditable]") !== null;

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (isTyping(event.target)) return;
  if (event.key === "/" && document.querySelector("[data-search]")) {
    event.preventDefault();
    document.querySelector("[data-search]").focus();
  } else if (event.key === "?") {
    document.getElementById("keys").showModal();
  } else {
    const target = document.querySelector(`[data-key="${CSS.escape(event.key)}"]:not([disabled])`);
    if (target) {
      event.preventDefault();
      if (!(event.repeat && target.matches("button"))) target.click();
    }
  }
});

// A form is sent once: what comes before the next page is there would be about the item before.
let sent = false;
document.addEventListener("submit", (event) => {
  if (sent) event.preventDefault();
  sent ||= event.target.method === "post";
});
window.addEventListener("pageshow", () => {
  sent = false;
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const status = document.getElementById("copied");
  try {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    status.textContent = "copied";
  } catch {
    status.textContent = "the browser did not allow it: select the text instead";
  }
});

const REFRESH = 4000;

async function follow() {
  const main = document.querySelector("main[data-live]");
  if (!main) return;
  const busy = document.hidden || main.contains(document.activeElement) || String(getSelection());
  if (!busy) {
    try {
      const reply = await fetch(location.href);
      const page = new DOMParser().parseFromString(await reply.text(), "text/html");
      const update = page.querySelector("main");
      if (reply.ok && update) main.replaceWith(document.adoptNode(update));
    } catch {
      return; // the server has stopped
    }
  }
  setTimeout(follow, REFRESH);
}
setTimeout(follow, REFRESH);
