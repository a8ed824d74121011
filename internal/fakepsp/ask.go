package fakepsp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
)

// Ask calls an admin route of the program that listens at url: body, if it is not nil, is sent as
// JSON, and the answer is read into answer.
func Ask(ctx context.Context, method, url, path string, body, answer any) error {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return fmt.Errorf("ask fakepsp: %w", err)
		}
	}

	r, err := http.NewRequestWithContext(ctx, method, url+path, bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("ask fakepsp: %w", err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return fmt.Errorf("ask fakepsp: %w", err)
	}
	defer response.Body.Close()

	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("ask fakepsp: %s %s answered %d", method, path, response.StatusCode)
	}
	if err := json.NewDecoder(response.Body).Decode(answer); err != nil {
		return fmt.Errorf("read the answer of fakepsp: %w", err)
	}
	return nil
}
