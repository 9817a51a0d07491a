/* Sets the theme before anything is painted: the viewer's choice, else the system's. Not a module, so that it blocks. */
(function () {
  var root = document.documentElement;
  var dark = window.matchMedia("(prefers-color-scheme: dark)");
  function chosen() {
    try { return localStorage.getItem("theme"); } catch (error) { return null; }
  }
  function apply() {
    root.setAttribute("data-bs-theme", chosen() || (dark.matches ? "dark" : "light"));
  }
  apply();
  dark.addEventListener("change", function () {
    apply();
    document.dispatchEvent(new CustomEvent("theme:changed"));
  });
  window.allotmentTheme = function () {
    var next = root.getAttribute("data-bs-theme") === "dark" ? "light" : "dark";
    try { localStorage.setItem("theme", next); } catch (error) { /* private mode: it holds for this page */ }
    root.setAttribute("data-bs-theme", next);
    document.dispatchEvent(new CustomEvent("theme:changed"));
  };
  // The server writes times in this zone from the next page on.
  var zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (zone && document.cookie.indexOf("tz=" + zone) < 0) {
    document.cookie = "tz=" + zone + ";path=/;max-age=31536000;samesite=lax";
  }
})();
