package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// flags are those of one command, with -json, which every command has.
type flags struct {
	*flag.FlagSet
	usage  string
	asJSON bool
}

func newFlags(name, usage string) *flags {
	f := &flags{FlagSet: flag.NewFlagSet(name, flag.ContinueOnError), usage: usage}
	f.BoolVar(&f.asJSON, "json", false, "write JSON")
	return f
}

// parse reads flags and arguments in any order. It returns the arguments, which must be exactly
// those in names. Everything behind -- is an argument. With -h it explains the command and returns
// flag.ErrHelp.
func (f *flags) parse(c *call, args []string, names ...string) ([]string, error) {
	f.SetOutput(io.Discard)

	var found []string
	// The flag package stops at the first argument: take it and parse what follows.
	for len(args) > 0 {
		switch err := f.Parse(args); {
		case errors.Is(err, flag.ErrHelp):
			fmt.Fprint(c.stdout, f.usage, "\nFlags:\n")
			f.SetOutput(c.stdout)
			f.PrintDefaults()
			return nil, err
		case err != nil:
			return nil, fmt.Errorf("%w%s", err, f.hint())
		}

		rest := f.Args()
		// Parse swallows the --, so look for it in front of the rest.
		if read := len(args) - len(rest); read > 0 && args[read-1] == "--" {
			found = append(found, rest...)
			break
		}

		if len(rest) == 0 {
			break
		}

		found, args = append(found, rest[0]), rest[1:]
	}

	switch {
	case len(found) > len(names):
		return nil, fmt.Errorf("unexpected argument %q%s", found[len(names)], f.hint())
	case len(found) < len(names):
		return nil, fmt.Errorf("%s is missing%s", names[len(found)], f.hint())
	}
	return found, nil
}

func (f *flags) tenant() *string {
	return f.String("tenant", "", "`name` of the tenant, 1 to 100 characters")
}

func (f *flags) client() *string {
	return f.String("client", "", "`name` of the client, 1 to 100 characters")
}

// amount is a flag for money. It is decimal; the flag package would read 010 as 8.
func (f *flags) amount(v *int64, name, usage string) {
	f.Func(name, usage, func(s string) (err error) {
		if *v, err = strconv.ParseInt(s, 10, 64); err != nil {
			return errors.New(
				"it must be a whole number of minor units, such as 2500 for 25.00 USD")
		}
		return nil
	})
}

func (f *flags) duration(v *time.Duration, name, usage string) {
	f.Func(name, usage, func(s string) (err error) {
		if *v, err = time.ParseDuration(s); err != nil {
			return errors.New("it must be a duration, such as 30s or 2m")
		}
		return nil
	})
}

func (f *flags) hint() string { return " (oncepay " + f.Name() + " -h explains it)" }

// checks collects all problems with the values of flags and arguments, to report them together.
type checks struct {
	flags    *flags
	problems []error
}

func (c *checks) that(ok bool, problem string) {
	if !ok {
		c.problems = append(c.problems, errors.New(problem+c.flags.hint()))
	}
}

// name checks the rule of the database: a name has 1 to 100 characters.
func (c *checks) name(what, s string) {
	n := utf8.RuneCountInString(s)
	c.that(utf8.ValidString(s) && n >= 1 && n <= 100, what+" must be a name of 1 to 100 characters")
}

func (c *checks) id(what, s string) uuid.UUID {
	id, err := uuid.Parse(s)
	c.that(err == nil, what+" must be an id such as 0198a6de-5c1f-7000-8000-0123456789ab")
	return id
}

func (c *checks) err() error { return errors.Join(c.problems...) }

// aToken matches credentials, even truncated ones.
const aToken = `oncepay_[0-9A-Za-z]{16}_[0-9A-Za-z]+`

// noTokens rejects credentials among the arguments, which end up in the shell's history and the
// process list.
func noTokens(args []string) error {
	token := regexp.MustCompile(aToken)
	for _, a := range args {
		if token.MatchString(a) {
			return errors.New(
				"a credential does not belong among the arguments: put it into ONCEPAY_TOKEN (and revoke it, if others can see it here)")
		}
	}
	return nil
}

// withoutTokens is the last line of defense, whatever a message quotes.
func withoutTokens(s string) string {
	return regexp.MustCompile(aToken).ReplaceAllString(s, "[a credential]")
}
