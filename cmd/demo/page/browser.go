package page

import (
	"os"
	"os/exec"
	"runtime"
)

// Open shows the page in the visitor's browser, if there is a desktop.
func (s *Server) Open() {
	var show *exec.Cmd
	switch runtime.GOOS {
	case "darwin":
		show = exec.Command("open", s.URL())
	case "windows":
		show = exec.Command("rundll32", "url.dll,FileProtocolHandler", s.URL())
	default:
		if os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
			return
		}
		show = exec.Command("xdg-open", s.URL())
	}

	if show.Start() == nil {
		go func() { _ = show.Wait() }() // without a browser, the address is on the first line
	}
}
