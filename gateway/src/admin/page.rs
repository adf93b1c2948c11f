//! The page for browsers: three files that are part of the program.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Response, StatusCode};

use super::reply;

const HTML: &str = include_str!("page/index.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// Returns the answer to a request for one of the page's files.
pub(super) fn asset(path: &str) -> Option<Response<Full<Bytes>>> {
    let (kind, text) = match path {
        "/" => ("text/html; charset=utf-8", HTML),
        "/page.css" => ("text/css; charset=utf-8", STYLE),
        "/page.js" => ("text/javascript; charset=utf-8", SCRIPT),
        _ => return None,
    };
    Some(reply(StatusCode::OK, kind, text.to_owned()))
}
