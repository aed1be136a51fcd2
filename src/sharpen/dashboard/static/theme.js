// Runs before anything is drawn, so that a page does not flash in the other theme.
(function () {
  const theme = localStorage.getItem("sharpen-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
