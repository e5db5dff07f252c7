// The location's hash selects the view: #/runs, #/run/ID/PART, #/compare/ID,ID.

let end = () => {};
let shown = "";

/** Go to another view. */
export function go(hash) {
  location.hash = hash;
}

/** Replace the query of the current view without a new entry in the history. */
export function replaceQuery(path, values) {
  const query = new URLSearchParams(Object.entries(values).filter(([, value]) => value));
  const text = query.toString();
  shown = text ? `${path}?${text}` : path;
  history.replaceState(null, "", shown);
}

/** Return the parts of a hash: its path's names and its query. */
export function parsed(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  return { names: path.split("/").filter(Boolean), query: new URLSearchParams(query) };
}

/** Show the view of the location in `place`, now and after each change.
 *
 * `views` maps the first name of a hash to a function (place, {names, query}) that shows a view and
 * returns a function that ends it.
 */
export function startRouter(place, views) {
  const route = () => {
    if (location.hash === shown) return;
    shown = location.hash;
    const { names, query } = parsed(shown);
    const view = views[names[0]] ?? views.runs;
    end();
    document.title = "Farandole";
    scrollTo(0, 0);
    end = view(place, { names: names.slice(1), query }) ?? (() => {});
  };
  addEventListener("hashchange", route);
  shown = null;
  route();
}
