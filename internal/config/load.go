package config

import (
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// variable is one field of a struct, as its tags describe it.
type variable struct {
	index                        []int
	name, defaultValue, help     string
	example, min, max, check     string
	oneof                        []string
	required, defaultIsReference bool
}

// variables lists the fields of a struct in order, those of embedded structs in their place.
func variables(t reflect.Type) []variable {
	var all []variable
	for _, f := range reflect.VisibleFields(t) {
		if f.Anonymous {
			continue // its fields follow
		}

		v := variable{
			index:   f.Index,
			name:    f.Tag.Get("env"),
			help:    f.Tag.Get("help"),
			example: f.Tag.Get("example"),
			min:     f.Tag.Get("min"),
			max:     f.Tag.Get("max"),
			check:   f.Tag.Get("check"),
			oneof:   strings.Fields(f.Tag.Get("oneof")),
		}

		var optional bool
		v.defaultValue, optional = f.Tag.Lookup("default")
		v.required = !optional
		v.defaultIsReference = strings.HasPrefix(v.defaultValue, "$")
		if v.example == "" {
			v.example = v.defaultValue
		}
		all = append(all, v)
	}
	return all
}

func load[T any](getenv func(string) string) (T, error) {
	var cfg T
	var problems []error

	for _, v := range variables(reflect.TypeFor[T]()) {
		// The fields before this one are set: they may say that it is not needed.
		if c, is := any(cfg).(interface{ needs(name string) bool }); is && !c.needs(v.name) {
			v.required = false
		}

		// Everything that is wrong is reported together.
		field := reflect.ValueOf(&cfg).Elem().FieldByIndex(v.index)
		if problem := v.set(field, getenv); problem != "" {
			err := fmt.Errorf("%s %s, for example %s=%s", v.name, problem, v.name, v.example)
			problems = append(problems, err)
		}
	}

	// Only if each variable is valid by itself.
	if c, is := any(cfg).(interface{ together() []error }); is && len(problems) == 0 {
		problems = c.together()
	}

	if err := errors.Join(problems...); err != nil {
		var none T
		return none, err
	}
	return cfg, nil
}

// set reads the variable into its field and returns what is wrong with it, as the end of a sentence
// that begins with the variable's name.
func (v variable) set(field reflect.Value, getenv func(string) string) (problem string) {
	raw := getenv(v.name)

	// What is unset gets its default.
	switch {
	case raw == "" && v.required:
		return "is not set"
	case raw == "" && v.defaultIsReference:
		// A problem of the other variable is reported under that one's name.
		field.SetString(getenv(v.defaultValue[1:]))
		return ""
	case raw == "" && v.defaultValue == "":
		return ""
	case raw == "":
		raw = v.defaultValue
	}

	// The field's type says how to read the text.
	switch p := field.Addr().Interface().(type) {
	case *string:
		*p = raw
		return v.checkText(raw)

	case *[]string:
		*p = strings.Split(raw, ",")
		for i := range *p {
			(*p)[i] = strings.TrimSpace((*p)[i])
		}
		return v.checkList(raw, *p)

	case *int:
		return setNumber(p, v, raw, strconv.Atoi, "a whole number")
	case *time.Duration:
		return setNumber(p, v, raw, time.ParseDuration, "a duration")
	case *slog.Level:
		if p.UnmarshalText([]byte(raw)) != nil {
			return "must be debug, info, warn or error"
		}
		return ""
	}
	panic("config: no way to read " + v.name + " into a " + field.Type().String())
}

func setNumber[T int | time.Duration](
	p *T, v variable, raw string, parse func(string) (T, error), kind string,
) string {
	n, err := parse(raw)

	// A bound that is not set does not parse.
	low, noLow := parse(v.min)
	high, noHigh := parse(v.max)
	if err == nil && (noLow != nil || n >= low) && (noHigh != nil || n <= high) {
		*p = n
		return ""
	}

	problem := "must be " + kind

	switch {
	case noHigh == nil:
		problem += " from " + v.min + " to " + v.max
	case noLow == nil:
		problem += " of at least " + v.min
	}
	return problem
}
