package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/oncepay/oncepay/internal/top"
	"github.com/oncepay/oncepay/internal/top/screen"
)

// watchLive shows the screen until a key or a signal ends it.
func watchLive(ctx context.Context, watch *top.Watch, every time.Duration, out *os.File) error {
	l := live{
		ctx: ctx, watch: watch, trend: top.NewTrend(every),
		view: screen.View{Every: every, Colors: true, Trend: top.NewTrend(every)},
	}

	// Signals end ctx already.
	_, err := tea.NewProgram(l, tea.WithContext(ctx), tea.WithOutput(out), tea.WithoutSignalHandler()).Run()
	if err != nil && ctx.Err() == nil && !errors.Is(err, tea.ErrInterrupted) {
		return fmt.Errorf("use the terminal: %w", err)
	}
	return nil
}

// live is the screen between two events.
type live struct {
	ctx   context.Context
	watch *top.Watch
	trend *top.Trend

	view screen.View // as it is drawn: while paused, with what was known before
	help bool
}

type (
	looked struct{} // the programs were read
	again  struct{} // it is time to read them
)

// Init reads the programs for the first time.
func (l live) Init() tea.Cmd { return l.look }

// look is the only one that uses the watch at its time: the next begins after its end.
func (l live) look() tea.Msg {
	l.watch.Look(l.ctx)
	return looked{}
}

// Update takes a key, a new size or new figures.
func (l live) Update(m tea.Msg) (tea.Model, tea.Cmd) {
	switch m := m.(type) {
	case tea.WindowSizeMsg:
		l.view.Width, l.view.Height = m.Width, m.Height
	case tea.KeyPressMsg:
		return l.key(m.String())
	case again:
		return l, l.look
	case looked:
		l.take()
		return l, tea.Tick(l.view.Every, func(time.Time) tea.Msg { return again{} })
	}
	return l, nil
}

// take shows what was read. The programs are read while paused, too: rates have no gap then.
func (l *live) take() {
	f := l.watch.Figures()
	l.trend.Add(f)
	if !l.view.Paused {
		l.view.Figures, l.view.Trend = f, l.trend.Clone()
	}
}

func (l live) key(name string) (tea.Model, tea.Cmd) {
	switch name {
	case "q", "ctrl+c":
		return l, tea.Quit
	case "space":
		l.view.Paused = !l.view.Paused
	case "?":
		l.help = !l.help
	case "esc":
		l.help = false
	}
	return l, nil
}

// View draws.
func (l live) View() tea.View {
	text := screen.Draw(l.view)
	if l.help {
		text = screen.Help(l.view.Width, l.view.Height, l.view.Colors)
	}
	return tea.View{Content: text, AltScreen: true, WindowTitle: "oncepay top"}
}
