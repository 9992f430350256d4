// The chosen theme is set before anything is drawn. Without a choice, the system's theme is used.
(() => {
  "use strict";
  let chosen = "";
  try {
    chosen = localStorage.getItem("keyward-theme") ?? "";
  } catch { /* storage is off: the system's theme it is */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
