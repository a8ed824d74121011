package page

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"
)

// act answers POST /actions/NAME.
func (s *Server) act(w http.ResponseWriter, r *http.Request) {
	stage := s.commanded(w, r)
	if stage == nil {
		return
	}

	text, err := stage.Act(r.Context(), r.PathValue("action"))
	if err != nil {
		refuse(w, statusOf(err), err)
		return
	}
	answer(w, http.StatusOK, map[string]string{"text": text})
}

func (s *Server) tour(w http.ResponseWriter, _ *http.Request) {
	steps := []Step{}
	if stage := s.stage.Load(); stage != nil {
		steps = stage.Tour
	}
	answer(w, http.StatusOK, steps)
}

// play answers POST /tour/1 and so on.
func (s *Server) play(w http.ResponseWriter, r *http.Request) {
	stage := s.commanded(w, r)
	if stage == nil {
		return
	}

	n, err := strconv.Atoi(r.PathValue("step"))
	if err != nil || n < 1 || n > len(stage.Tour) {
		refuse(w, http.StatusNotFound, fmt.Errorf("the tour has the steps 1 to %d", len(stage.Tour)))
		return
	}

	proof, err := stage.Play(r.Context(), n)
	if err != nil {
		refuse(w, statusOf(err), err)
		return
	}
	answer(w, http.StatusOK, proof)
}

// commanded returns the stage for a command that may be obeyed; otherwise it has answered. The content
// type is one that a form cannot send.
func (s *Server) commanded(w http.ResponseWriter, r *http.Request) *Stage {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" {
		refuse(w, http.StatusUnsupportedMediaType, errors.New("send it with Content-Type: application/json"))
		return nil
	}

	stage := s.stage.Load()
	if stage == nil {
		refuse(w, http.StatusConflict, errors.New("the demo is starting, or has begun to count"))
	}
	return stage
}

func statusOf(err error) int {
	var refused Refused
	switch {
	case errors.Is(err, ErrUnknown):
		return http.StatusNotFound
	case errors.As(err, &refused):
		return http.StatusConflict
	}
	return http.StatusInternalServerError
}

func refuse(w http.ResponseWriter, status int, err error) {
	answer(w, status, map[string]string{"error": err.Error()})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the browser may be gone
}
