"""The login, which exchanges a token, or the code of a one-time link, for a cookie.

The page displays no data of the site, because anyone may request it.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from hourglass._http.access import Access, AccessDecision
from hourglass._http.names import OwnNames
from hourglass._tools.web import pages, requests, security

AFTER = "/workflows"
_BARE = pages.View(target="")


class LoginPages:
    """The handlers of `/login`. They run on the event loop, as `Access` requires."""

    def __init__(self, access: Access, names: OwnNames) -> None:
        self._access = access
        self._names = names

    async def show(self, request: Request) -> Response:
        """Show the login form. If the address contains the code of the one-time link, log in."""
        code = request.query_params.get("code")
        if code is None or request.method == "HEAD":  # a preview of the link must not use it up
            return _form()
        if not self._access.redeem(code):
            return _form("this link has been used already, or is invalid: enter the token", 403)
        # Respond with a page that loads the next page, instead of a redirect. If the browser comes from another site or a
        # file, it sends a SameSite=Strict cookie only with requests that this page itself makes.
        return self._logged_in(
            request,
            HTMLResponse(
                pages.render("logged_in", _BARE, title="Logged in", after=AFTER),
                headers={"refresh": f"0;url={AFTER}"},
            ),
        )

    async def submit(self, request: Request) -> Response:
        """Check the token entered in the form."""
        token = str((await requests.fields(request)).get("token", "")).strip()
        match self._access.check_token(token, request.client.host if request.client else ""):
            case AccessDecision.ADMITTED:
                return self._logged_in(request, RedirectResponse(AFTER, 303))
            case AccessDecision.DENIED:
                return _form("wrong token", 401)
            case AccessDecision.LIMITED:
                rejection = security.too_many_guesses()
                return PlainTextResponse(rejection.message, rejection.status, dict(rejection.headers))

    def _logged_in(self, request: Request, response: Response) -> Response:
        secure = self._names.is_secure(request.headers)
        response.headers["set-cookie"] = self._access.set_cookie(secure=secure)
        return response


def _form(error: str = "", status: int = 200) -> Response:
    return HTMLResponse(pages.render("login", _BARE, title="Log in", error=error), status)
