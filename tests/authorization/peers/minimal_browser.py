"""A minimal browser: opens a page and follows redirects up to the waiting program.

python minimal_browser.py URL      opens a page as a browser that follows every redirect to its end
"""

import sys
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urljoin
from urllib.request import HTTPCookieProcessor, HTTPRedirectHandler, OpenerDirector, build_opener


class _Stopping(HTTPRedirectHandler):
    """Follows no redirects by itself."""

    def redirect_request(self, *_: Any) -> None:
        return None


def sent_back(url: str, redirect_uri: str) -> str:
    """The address below a redirect URI that a page leads to."""
    browser = build_opener(HTTPCookieProcessor(CookieJar(DefaultCookiePolicy())), _Stopping())
    while not url.startswith(redirect_uri):
        url = urljoin(url, _location(browser, url))
    return url


def _location(browser: OpenerDirector, url: str) -> str:
    try:
        browser.open(url).close()
    except HTTPError as page:
        page.close()
        return page.headers["location"]
    raise AssertionError(f"{url} is where it ends")


if __name__ == "__main__":
    with build_opener(HTTPCookieProcessor()).open(sys.argv[1]) as last:
        last.read()
