/* Dark or light: as the system says until the reader chooses. A classic script in the head, so that the choice is in
 * force before anything is painted. */
(() => {
  const KEY = "nsqadmin-theme";
  const root = document.documentElement;
  const stored = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // storage is forbidden here: the choice lasts as long as the page
    }
  };
  const apply = (theme) => {
    if (theme === "dark" || theme === "light") root.dataset.theme = theme;
    else delete root.dataset.theme;
  };
  apply(stored());

  const isDark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const toggle = () => {
    const theme = isDark() ? "light" : "dark";
    apply(theme);
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      /* see above */
    }
    document.dispatchEvent(new CustomEvent("themechange"));
  };
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-toggle-theme]")) toggle();
  });
  document.addEventListener("toggletheme", toggle);
})();
