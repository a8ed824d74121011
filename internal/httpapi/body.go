package httpapi

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
)

// maxBody, in bytes as sent, is far above any ordinary payment. Only metadata and a description of
// full length, in escaped characters from beyond ASCII, come near it.
const maxBody = 64 << 10

// readBody reads the whole body before any transaction begins: a slow client must not keep one
// open.
func readBody(r *http.Request) ([]byte, error) {
	// What can be refused by the header alone.
	if r.URL.RawQuery != "" || r.URL.ForceQuery {
		return nil, refuse("invalid-query", "A POST takes no query: everything goes into the body.")
	}
	if err := checkMediaType(r.Header); err != nil {
		return nil, err
	}
	if r.ContentLength > maxBody {
		return nil, errTooLarge
	}

	// No ResponseWriter is passed, since it may be wrapped: errTooLarge closes the connection
	// itself.
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxBody))

	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, errTooLarge
	case errors.Is(err, os.ErrDeadlineExceeded), r.Context().Err() != nil: // no time is left
		return nil, refuse("request-timeout", "The body must arrive within %s.", handlerTimeout).
			with("Connection", "close")
	case err != nil:
		return nil, refuse("malformed-json", "The body could not be read to its end.").
			with("Connection", "close").because(err)
	}
	return body, nil
}

// The rest of the body stays unread, so the connection cannot be reused.
var errTooLarge = refuse("body-too-large", "The body must not be larger than %d bytes.", maxBody).
	with("Connection", "close")

func checkMediaType(h http.Header) error {
	if len(h.Values("Content-Encoding")) > 0 {
		return refuse("unsupported-media-type",
			"The body must not be compressed: omit Content-Encoding.")
	}

	// Two headers may mean two things to two programs, so there must be one.
	lines := h.Values("Content-Type")
	if len(lines) != 1 {
		return refuse("unsupported-media-type", "Send one Content-Type header: application/json.")
	}

	mediaType, params, err := mime.ParseMediaType(lines[0])
	if err != nil || mediaType != applicationJSON {
		return refuse("unsupported-media-type", "The Content-Type must be application/json.")
	}
	if charset, there := params["charset"]; there && !strings.EqualFold(charset, "utf-8") {
		return refuse("unsupported-media-type", "JSON is UTF-8: omit the charset.")
	}
	return nil
}
