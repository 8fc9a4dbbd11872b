//! Selects the route of a request. Matching routes are compared segment by segment from the left: a
//! literal has priority over a `{parameter}`, and a parameter over the greedy `{parameter+}`. Then
//! the exact method has priority over `ANY`. `$default` matches all other requests.

use std::{cmp::Reverse, collections::BTreeMap};

use super::urlencoded;
use crate::model::Route;

const DEFAULT: &str = "$default";
const ANY: &str = "ANY";

#[derive(Debug)]
pub(super) struct Match<'a> {
    pub(super) route: &'a Route,
    pub(super) parameters: BTreeMap<String, String>,
}

/// How a segment matches, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    Literal,
    Parameter,
    Greedy,
}

pub(super) fn match_route<'a>(routes: &'a [Route], method: &str, path: &str) -> Option<Match<'a>> {
    let of_method = routes.iter().filter(|route| route.method == method || route.method == ANY);
    let fitting =
        of_method.filter_map(|route| fit(&route.path, path).map(|(fits, parameters)| (fits, route, parameters)));
    let best = fitting.min_by_key(|(fits, route, _)| (fits.clone(), Reverse(route.method == method)));
    let default = || routes.iter().find(|route| is_default(route)).map(|route| (route, BTreeMap::new()));
    let (route, parameters) = best.map(|(_, route, parameters)| (route, parameters)).or_else(default)?;
    Some(Match { route, parameters })
}

/// Returns the name of the route in events: `GET /things/{id}`.
pub(super) fn key(route: &Route) -> String {
    if is_default(route) { DEFAULT.to_owned() } else { format!("{} {}", route.method, route.path) }
}

fn is_default(route: &Route) -> bool {
    route.path == DEFAULT || route.method.eq_ignore_ascii_case(DEFAULT)
}

fn fit(template: &str, path: &str) -> Option<(Vec<Fit>, BTreeMap<String, String>)> {
    let (mut fits, mut parameters) = (Vec::new(), BTreeMap::new());
    let mut rest = path.strip_prefix('/');
    for segment in template.strip_prefix('/')?.split('/') {
        let remaining = rest?;
        if let Some(name) = segment.strip_prefix('{').and_then(|segment| segment.strip_suffix("+}")) {
            fits.push(Fit::Greedy);
            parameters.insert(name.to_owned(), urlencoded::decode(remaining));
            return (!remaining.is_empty()).then_some((fits, parameters));
        }
        let (given, after) = match remaining.split_once('/') {
            Some((given, after)) => (given, Some(after)),
            None => (remaining, None),
        };
        let given = urlencoded::decode(given);
        if let Some(name) = segment.strip_prefix('{').and_then(|segment| segment.strip_suffix('}')) {
            if given.is_empty() {
                return None;
            }
            fits.push(Fit::Parameter);
            parameters.insert(name.to_owned(), given);
        } else if segment == given {
            fits.push(Fit::Literal);
        } else {
            return None;
        }
        rest = after;
    }
    rest.is_none().then_some((fits, parameters))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_literal_has_priority_over_a_parameter_and_a_parameter_over_a_greedy_one() {
        let routes = routes(&["GET /{proxy+}", "GET /things/{id}", "GET /things/new", "GET /{kind}/{id}/parts"]);
        assert_eq!(taken(&routes, "GET", "/things/new"), "GET /things/new");
        assert_eq!(taken(&routes, "GET", "/things/7"), "GET /things/{id} id=7");
        assert_eq!(taken(&routes, "GET", "/things/7/parts"), "GET /{kind}/{id}/parts id=7 kind=things");
        assert_eq!(taken(&routes, "GET", "/things/7/other"), "GET /{proxy+} proxy=things/7/other");
    }

    #[test]
    fn the_first_difference_from_the_left_decides() {
        let routes = routes(&["GET /{a}/b", "GET /a/{b}"]);
        assert_eq!(taken(&routes, "GET", "/a/b"), "GET /a/{b} b=b");
    }

    #[test]
    fn a_method_has_priority_over_any_and_a_better_path_over_a_method() {
        let routes = routes(&["ANY /things/{id}", "GET /things/{id}", "ANY /things/new"]);
        assert_eq!(taken(&routes, "GET", "/things/7"), "GET /things/{id} id=7");
        assert_eq!(taken(&routes, "PUT", "/things/7"), "ANY /things/{id} id=7");
        assert_eq!(taken(&routes, "GET", "/things/new"), "ANY /things/new");
    }

    #[test]
    fn routes_with_another_method_are_skipped() {
        let routes = routes(&["GET /things/new", "POST /things/{id}"]);
        assert_eq!(taken(&routes, "POST", "/things/new"), "POST /things/{id} id=new");
        assert_eq!(taken(&routes, "DELETE", "/things/new"), "");
    }

    #[test]
    fn the_default_route_gets_only_requests_without_another_route() {
        let routes = routes(&["ANY $default", "GET /things"]);
        assert_eq!(taken(&routes, "GET", "/things"), "GET /things");
        assert_eq!(taken(&routes, "POST", "/things"), "$default");
        assert_eq!(taken(&routes, "GET", "/"), "$default");
    }

    #[test]
    fn a_trailing_slash_or_an_empty_segment_makes_a_different_path() {
        let routes = routes(&["GET /things", "GET /things/{id}", "GET /all/{proxy+}", "GET /"]);
        assert_eq!(taken(&routes, "GET", "/things/"), "");
        assert_eq!(taken(&routes, "GET", "//things"), "");
        assert_eq!(taken(&routes, "GET", "/all/"), "");
        assert_eq!(taken(&routes, "GET", "/"), "GET /");
    }

    #[test]
    fn parameters_are_decoded_after_the_path_is_split() {
        let routes = routes(&["GET /things/{id}"]);
        assert_eq!(taken(&routes, "GET", "/things/a%2Fb%20c+d"), "GET /things/{id} id=a/b c+d");
    }

    fn routes(keys: &[&str]) -> Vec<Route> {
        let split = keys.iter().map(|key| key.split_once(' ').unwrap());
        let route = |(method, path): (&str, &str)| Route {
            method: method.to_owned(),
            path: path.to_owned(),
            function: String::new(),
            authorized: false,
        };
        split.map(route).collect()
    }

    fn taken(routes: &[Route], method: &str, path: &str) -> String {
        let Some(found) = match_route(routes, method, path) else { return String::new() };
        let parameters = found.parameters.iter().map(|(name, value)| format!(" {name}={value}"));
        format!("{}{}", key(found.route), parameters.collect::<String>())
    }
}
