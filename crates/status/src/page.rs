//! The page with charts, and the files that it loads. This program contains all these files, so a browser asks no other
//! host.

/// A file of the page: its path, its media type, and its text.
type File = (&'static str, &'static str, &'static str);

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";

const FILES: [File; 7] = [
    (
        "/",
        "text/html; charset=utf-8",
        include_str!("../page/index.html"),
    ),
    ("/page/page.js", JAVASCRIPT, include_str!("../page/page.js")),
    ("/page/page.css", CSS, include_str!("../page/page.css")),
    (
        "/page/icon.svg",
        "image/svg+xml",
        include_str!("../page/icon.svg"),
    ),
    (
        "/page/uplot.js",
        JAVASCRIPT,
        include_str!("../page/uplot/uPlot.iife.min.js"),
    ),
    (
        "/page/uplot.css",
        CSS,
        include_str!("../page/uplot/uPlot.min.css"),
    ),
    (
        "/page/uplot-license.txt",
        "text/plain; charset=utf-8",
        include_str!("../page/uplot/LICENSE"),
    ),
];

/// The content security policy of the page. The page may run and load files from this port, and nothing from other
/// hosts. No other page may show this page in a frame.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'";

/// Returns the media type and text of the file at this path.
pub fn file(path: &str) -> Option<(&'static str, &'static str)> {
    let found = FILES.iter().find(|(name, ..)| *name == path)?;
    Some((found.1, found.2))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The policy forbids other sources, so this list must have each file that the page names.
    #[test]
    fn the_page_asks_for_files_of_this_port_only() {
        let (_, page) = file("/").unwrap();
        let targets = page.split(['"']).collect::<Vec<_>>();
        let targets = targets.windows(2).filter_map(|two| {
            (two[0].ends_with("href=") || two[0].ends_with("src=")).then_some(two[1])
        });
        let mut files = 0;
        for target in targets {
            let is_answer = ["/metrics", "/api/v1/status", "/readyz"].contains(&target);
            assert!(is_answer || file(target).is_some(), "{target}");
            files += usize::from(!is_answer);
        }
        assert_eq!(
            files,
            FILES.len() - 1,
            "each is asked for, but the page itself"
        );
        assert!(!page.contains("style=") && !page.contains("onclick"));
        for (name, _, text) in FILES {
            let hosts: Vec<&str> = text
                .match_indices("://")
                .map(|(at, _)| text[at..].split([' ', '"', '\n']).next().unwrap())
                .filter(|host| !host.starts_with("://github.com/leeoniya/uPlot"))
                .filter(|host| !host.starts_with("://www.w3.org/2000/svg"))
                .collect();
            assert_eq!(hosts, [""; 0], "{name}");
        }
    }

    #[test]
    fn the_licence_of_the_charts_is_there() {
        let (_, licence) = file("/page/uplot-license.txt").unwrap();
        assert!(licence.contains("The MIT License") && licence.contains("Leon Sorokin"));
    }
}
