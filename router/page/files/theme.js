// Before anything is drawn: the theme that was chosen here, if one was.
"use strict";
{
  let theme = null;
  try {
    theme = localStorage.getItem("tandem-theme");
  } catch {
    // Storage is forbidden here: the system's theme will do.
  }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
}
