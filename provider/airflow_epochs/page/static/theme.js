// Before the first paint: Airflow's own choice of light or dark. The page is a frame within Airflow's page.
(function () {
  function dark() {
    try {
      if (window.parent !== window) return window.parent.document.documentElement.classList.contains("dark");
    } catch (error) {
      // another site's frame: follow the browser
    }
    return window.matchMedia("(prefers-color-scheme: dark)").matches;
  }
  function apply() {
    document.documentElement.classList.toggle("dark", dark());
  }
  apply();
  try {
    if (window.parent !== window)
      new MutationObserver(function () {
        apply();
        document.dispatchEvent(new Event("theme"));
      }).observe(window.parent.document.documentElement, { attributes: true, attributeFilter: ["class"] });
  } catch (error) {
    // as above
  }
})();
