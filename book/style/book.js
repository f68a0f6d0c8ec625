/* The woven book in a browser: unfolding holes, finding names, keys. Every
   page reads well without this file; links then lead to the definitions. */
(function () {
"use strict";
var root = document.documentElement;
function one(s, from) { return (from || document).querySelector(s); }
function all(s, from) { return Array.from((from || document).querySelectorAll(s)); }
function script(src, done) {
    var s = document.createElement("script");
    s.src = src; s.onload = function () { done(); };
    s.onerror = function () { done(new Error(src)); };
    document.head.appendChild(s);
}

/* ------------------------------------------------------------- theme */
function dark() {
    var t = root.getAttribute("data-theme");
    return t ? t === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}
function turn() {
    var t = dark() ? "light" : "dark";
    root.setAttribute("data-theme", t);
    try { localStorage.setItem("book-theme", t); } catch (e) { /* private */ }
}
one("#theme").addEventListener("click", turn);

/* ----------------------------------------------------- unfolding holes */
/* bodies: anchor -> [number, address of the continuation, HTML] */
var bodies = {}, pages = {};
window.bookBodies = function (more) { Object.assign(bodies, more); };
function body(href, use) {              /* href: page.html#anchor or #anchor */
    var at = href.indexOf("#"), id = decodeURIComponent(href.slice(at + 1));
    var page = href.slice(0, at).replace(/\.html$/, "") ||
        document.body.className.replace("page-", "");
    function found() { if (bodies[id]) use(bodies[id], page + ".html#" + id); }
    if (bodies[id]) { found(); return; }
    if (pages[page]) { pages[page].push(found); return; }
    pages[page] = [found];
    script("bodies/" + page + ".js", function (error) {
        if (error) { location.href = href; return; }
        pages[page].forEach(function (f) { f(); });
    });
}
function append(box, href, first) {
    body(href, function (b) {
        if (!first) box.appendChild(document.createTextNode("\n"));
        var part = document.createElement("span");
        part.innerHTML = b[2] || "<i>nothing yet</i>";
        box.appendChild(part);
        ready(part);
        if (b[1]) append(box, b[1], false);
    });
}
/* The line end behind a hole belongs to the box while it is open. */
function takeLineEnd(hole) {
    var next = hole.nextSibling;
    if (next && next.nodeType === 3 && next.data[0] === "\n") {
        next.data = next.data.slice(1);
        return true;
    }
    return false;
}
function toggle(a) {
    var hole = a.parentNode, box = hole.nextSibling;
    if (box && box.classList && box.classList.contains("unfolded")) {
        var end = box.dataset.end;
        box.remove();
        if (end) hole.after(document.createTextNode("\n"));
        hole.parentNode.normalize();
        a.setAttribute("aria-expanded", "false");
        return;
    }
    var indent = 0, before = hole.previousSibling;
    if (before && before.nodeType === 3)
        indent = before.data.length - before.data.lastIndexOf("\n") - 1;
    box = document.createElement("span");
    box.className = "unfolded";
    box.style.marginLeft = indent + "ch";
    if (takeLineEnd(hole)) box.dataset.end = "1";
    hole.after(box);
    a.setAttribute("aria-expanded", "true");
    append(box, a.getAttribute("href"), true);
}
function ready(within) {
    all(".hole > a.h", within).forEach(function (a) {
        a.setAttribute("role", "button");
        a.setAttribute("aria-expanded", "false");
    });
}
ready(document);
document.addEventListener("click", function (e) {
    var a = e.target.closest && e.target.closest(".hole > a.h");
    if (!a || e.ctrlKey || e.metaKey || e.shiftKey || e.button) return;
    e.preventDefault();
    toggle(a);
});

/* ------------------------------------------------------------- find */
var help = one("#help");
var find = one("#find"), found = one("#found"), chosen = -1, loading = false;
var kinds = { s: "section", c: "chunk", i: "name" };
function score(text, words) {
    var t = text.toLowerCase(), n = 0;
    for (var i = 0; i < words.length; i++) {
        var at = t.indexOf(words[i]);
        if (at < 0) return -1;
        n += at === 0 ? 3 : /[^a-z0-9]/.test(t[at - 1]) ? 2 : 1;
    }
    return n + (t === words.join(" ") ? 5 : 0) - t.length / 200;
}
function show(rows) {
    found.textContent = "";
    chosen = -1;
    rows.slice(0, 40).forEach(function (r) {
        var li = document.createElement("li"), a = document.createElement("a");
        li.setAttribute("role", "none");
        a.href = r[2];
        a.setAttribute("role", "option");
        [["k", kinds[r[0]]], ["t", r[1]], ["p", r[3]]].forEach(function (x) {
            var s = document.createElement("span");
            s.className = x[0]; s.textContent = x[1];
            a.appendChild(s);
        });
        li.appendChild(a);
        found.appendChild(li);
    });
    if (!rows.length)
        found.innerHTML = '<li class="none">nothing of that name</li>';
    open(true);
}
function open(yes) {
    found.hidden = !yes;
    find.setAttribute("aria-expanded", yes ? "true" : "false");
}
function search() {
    var words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) { open(false); return; }
    if (!window.bookIndex) {
        if (!loading) { loading = true; script("search.js", search); }
        return;
    }
    show(window.bookIndex.map(function (r) { return [score(r[1], words), r]; })
        .filter(function (x) { return x[0] >= 0; })
        .sort(function (a, b) { return b[0] - a[0]; })
        .map(function (x) { return x[1]; }));
}
function choose(step) {
    var list = all("a", found);
    if (!list.length) return;
    if (chosen >= 0) list[chosen].removeAttribute("aria-selected");
    chosen = (chosen + step + list.length) % list.length;
    list[chosen].setAttribute("aria-selected", "true");
    list[chosen].scrollIntoView({ block: "nearest" });
}
find.addEventListener("input", search);
find.addEventListener("focus", search);
find.addEventListener("keydown", function (e) {
    if (e.key === "ArrowDown" || e.key === "ArrowUp") {
        e.preventDefault();
        choose(e.key === "ArrowDown" ? 1 : chosen < 0 ? 0 : -1);
    } else if (e.key === "Enter") {
        var a = all("a", found)[Math.max(chosen, 0)];
        if (a) { open(false); find.blur(); location.href = a.href; }
    } else if (e.key === "Escape") { open(false); find.blur(); }
});
one("button", help).addEventListener("click", function () { help.close(); });
document.addEventListener("click", function (e) {
    if (!e.target.closest(".find") || e.target.closest("#found a")) open(false);
});

/* ------------------------------------------------------------- keys */
one("#keys").addEventListener("click", function () { help.showModal(); });
function chunkNear(step) {
    var list = all(".chunk"), line = 90, i;
    var here = list.indexOf(document.activeElement.closest(".chunk"));
    if (here < 0) {
        for (i = 0; i < list.length; i++)
            if (list[i].getBoundingClientRect().top > line) break;
        here = step > 0 ? i - 1 : i;
    }
    var next = list[here + step];
    if (!next) return;
    next.scrollIntoView({ block: "start" });
    one(".name", next).focus({ preventScroll: true });
}
function go(rel) {
    var a = one("a[rel=" + rel + "]");
    if (a) location.href = a.href;
}
var keys = {
    ArrowLeft: function () { go("prev"); }, ArrowRight: function () { go("next"); },
    j: function () { chunkNear(1); }, k: function () { chunkNear(-1); },
    o: function () {
        var c = document.activeElement.closest(".chunk");
        if (c) all("pre > code > .hole > a.h", c).forEach(toggle);
    },
    "/": function () { find.focus(); find.select(); },
    c: function () { location.href = "index.html"; },
    t: turn,
    "?": function () { help.showModal(); }
};
document.addEventListener("keydown", function (e) {
    var at = e.target;
    if (e.ctrlKey || e.metaKey || e.altKey || help.open || !keys[e.key] ||
        at.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(at.tagName))
        return;
    /* an arrow scrolls code that is wider than its box */
    if (e.key.indexOf("Arrow") === 0 && at.closest("pre, .scroll")) return;
    if (e.key === " " || e.key === "Enter") return;
    e.preventDefault();
    keys[e.key]();
});

/* -------------------------------------------------------- where we are */
var links = {};
all(".toc a").forEach(function (a) {
    links[decodeURIComponent(a.hash.slice(1))] = a;
});
var marks = all("main h1[id], main h2[id], main h3[id]");
function mark() {
    var now = marks[0];
    marks.forEach(function (h) {
        if (h.getBoundingClientRect().top < 120) now = h;
    });
    Object.keys(links).forEach(function (id) {
        links[id].classList.toggle("here", now && id === now.id);
    });
}
var waiting = false;
addEventListener("scroll", function () {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(function () { waiting = false; mark(); });
}, { passive: true });
mark();
/* only code that scrolls needs a place in the tab order */
function scrollers() {
    all("main pre").forEach(function (p) {
        if (p.scrollWidth > p.clientWidth) p.setAttribute("tabindex", "0");
        else p.removeAttribute("tabindex");
    });
}
scrollers();
addEventListener("resize", scrollers, { passive: true });
addEventListener("beforeprint", function () {
    all("details").forEach(function (d) { d.open = true; });
});
})();
