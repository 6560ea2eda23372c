// Light or dark: the system's theme until the reader chooses one, which is remembered.
(() => {
  "use strict";
  const KEY = "croc-theme";
  const CHOICES = ["auto", "light", "dark"];
  const root = document.documentElement;

  const remembered = () => {
    // Some browsers throw for pages opened as files.
    try { return localStorage.getItem(KEY); } catch { return null; }
  };
  const remember = (choice) => {
    try { localStorage.setItem(KEY, choice); } catch { /* then it lasts until the page is closed */ }
  };
  const apply = (choice) => {
    if (choice === "auto") root.removeAttribute("data-theme");
    else root.setAttribute("data-theme", choice);
    for (const button of document.querySelectorAll("[data-theme-switch] span")) {
      button.textContent = choice;
    }
  };

  let choice = CHOICES.includes(remembered()) ? remembered() : "auto";
  apply(choice);
  document.addEventListener("DOMContentLoaded", () => apply(choice));
  document.addEventListener("click", (event) => {
    if (!event.target.closest?.("[data-theme-switch]")) return;
    choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
    remember(choice);
    apply(choice);
  });
})();
