package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Execute runs the command that args name, root or one below it. A command line that it cannot
// read is an error, and nothing was done.
//
// SIGINT and SIGTERM end the context of the command. A second one ends the process at once.
func Execute(
	ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer,
) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // after the first signal, the next one has its default effect

	// Complain reports errors, on one line each. -h explains commands: one way is enough.
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetHelpCommand(&cobra.Command{Use: "no-help", Hidden: true})
	root.SetFlagErrorFunc(wrongFlag)
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)

	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetArgs(append([]string{}, args...)) // nil would be those of the process

	// Completion is a command like the others: make it before they are prepared.
	root.InitDefaultCompletionCmd(args...)
	prepare(root)
	return root.ExecuteContext(ctx)
}

// prepare checks the command line of c and of all commands below it. Their arguments are the words
// behind the name in Use.
func prepare(c *cobra.Command) {
	// Cobra names required flags only when one is missing.
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if _, required := f.Annotations[cobra.BashCompOneRequiredFlag]; required {
			f.Usage += " (required)"
		}
	})

	if c.Args == nil || !c.Runnable() {
		c.Args = checkArguments
	}

	// Cobra would print the help, with exit code 0.
	if !c.Runnable() {
		c.RunE = func(c *cobra.Command, _ []string) error {
			return explained(c, errors.New("no command"))
		}
	}

	for _, below := range c.Commands() {
		prepare(below)
	}
}

func checkArguments(c *cobra.Command, args []string) error {
	names := strings.Fields(c.Use)[1:]

	switch {
	case len(args) > 0 && c.HasSubCommands():
		return explained(c, fmt.Errorf("unknown command %q", args[0]))
	case len(args) > len(names):
		return explained(c, fmt.Errorf("unexpected argument %q", args[len(names)]))
	case len(args) < len(names):
		return explained(c, fmt.Errorf("%s is missing", names[len(args)]))
	}

	// Cobra checks them later, and does not say where they are explained.
	if err := c.ValidateRequiredFlags(); err != nil {
		return explained(c, err)
	}
	return nil
}

// wrongFlag is about the command if that is unknown: its flags are, too.
func wrongFlag(c *cobra.Command, err error) error {
	if args := c.Flags().Args(); len(args) > 0 && c.HasSubCommands() {
		return checkArguments(c, args)
	}
	return explained(c, err)
}

// explained tells where the command line is explained.
func explained(c *cobra.Command, err error) error {
	return fmt.Errorf("%w (%s -h explains it)", err, c.CommandPath())
}

// Flag adds a flag to c that parse reads into v. kind names its value in -h. Errors of parse end the
// sentence that names the flag and its value.
func Flag[T any](
	c *cobra.Command, v *T, name, kind, usage string, parse func(string) (T, error),
) {
	c.Flags().Var(value[T]{v, kind, parse}, name, usage)
}

// value implements pflag.Value.
type value[T any] struct {
	v     *T
	kind  string
	parse func(string) (T, error)
}

func (v value[T]) String() string { return "" }
func (v value[T]) Type() string   { return v.kind }

func (v value[T]) Set(s string) (err error) {
	*v.v, err = v.parse(s)
	return err
}

// Argument makes c read its only argument into v. Use names it.
func Argument[T any](c *cobra.Command, v *T, parse func(string) (T, error)) {
	c.Args = func(c *cobra.Command, args []string) (err error) {
		if err := checkArguments(c, args); err != nil {
			return err
		}

		if *v, err = parse(args[0]); err != nil {
			return explained(c, fmt.Errorf("%s: %w", strings.Fields(c.Use)[1], err))
		}
		return nil
	}
}

// Require makes flags of c required.
func Require(c *cobra.Command, flags ...string) {
	for _, name := range flags {
		if err := c.MarkFlagRequired(name); err != nil {
			panic("program: " + err.Error()) // there is no such flag: a mistake of the caller
		}
	}
}

// Complain writes err, one line for each problem, each with the name of the program before it. The
// driver lists on several lines what it tried to reach: that is one problem.
func Complain(stderr io.Writer, program string, err error) {
	text := strings.NewReplacer(":\n\t", ": ", "\n\t", "; ").Replace(err.Error())
	for line := range strings.Lines(strings.TrimSpace(text)) {
		fmt.Fprintf(stderr, "%s: %s\n", program, printable(strings.TrimSpace(line)))
	}
}

// printable replaces the characters that would move the terminal's cursor or turn the direction of
// its text (U+202E). Names and descriptions may contain them.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.In(r, unicode.Cc, unicode.Cf) {
			return '\uFFFD'
		}
		return r
	}, s)
}
