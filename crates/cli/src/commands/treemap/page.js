(function () {
  "use strict";
  var svg = document.querySelector("main > svg");
  var where = document.getElementById("where");
  var whole = document.getElementById("n0");
  var home = svg.getAttribute("viewBox");
  var zoomed = whole;

  function above(node) { return node === whole ? whole : node.parentNode.closest("g.n"); }
  function inside(node) { return node.querySelector("g.n"); }
  function isOpen(node) { return node.classList.contains("d"); }
  function next(node, step) {
    do { node = node[step]; } while (node && !(node.matches && node.matches("g.n")));
    return node;
  }
  function look(node) {
    node.focus({ preventScroll: true });
    where.textContent = node.querySelector("title").textContent;
  }
  function zoom(node) {
    var box = node.querySelector("rect"), side = function (name) { return box.getAttribute(name); };
    zoomed = node;
    svg.setAttribute("viewBox",
      node === whole ? home : [side("x"), side("y"), side("width"), side("height")].join(" "));
    look(node);
  }
  // The address names the node, so that the browser's way back zooms out.
  function go(node) {
    if (location.hash === "#" + node.id) zoom(node); else location.hash = node.id;
  }
  function follow() {
    var node = document.getElementById(location.hash.slice(1));
    zoom(node && node.matches("g.d") ? node : whole);
  }
  svg.addEventListener("click", function (event) {
    var node = event.target.closest("g.n"), at = node;
    if (!node) return;
    while (at !== whole && above(at) !== zoomed) at = above(at);
    if (node === zoomed || (at === whole && zoomed !== whole)) go(above(zoomed));
    else if (isOpen(at)) go(at);
    else look(at);
  });
  svg.addEventListener("mouseover", function (event) {
    var node = event.target.closest("g.n");
    if (node) where.textContent = node.querySelector("title").textContent;
  });
  document.addEventListener("keydown", function (event) {
    var node = document.activeElement.closest("g.n") || zoomed, to = null;
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    switch (event.key) {
    case "Enter": case " ": if (isOpen(node)) go(node); else look(node); break;
    case "Escape": case "Backspace": go(above(zoomed)); break;
    case "Home": go(whole); break;
    case "ArrowRight": to = next(node, "nextSibling"); break;
    case "ArrowLeft": to = next(node, "previousSibling"); break;
    case "ArrowDown": to = inside(node); break;
    case "ArrowUp": to = above(node); break;
    default: return;
    }
    if (to) look(to);
    event.preventDefault();
  });
  window.addEventListener("hashchange", follow);
  follow();
})();
