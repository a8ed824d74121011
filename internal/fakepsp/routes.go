package fakepsp

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// maxBody is far above any order.
const maxBody = 64 << 10

func (p *PSP) routes() *http.ServeMux {
	mux := http.NewServeMux()

	v1 := http.NewServeMux()
	v1.HandleFunc("POST /v1/charges", post[chargeOrder](p))
	v1.HandleFunc("POST /v1/refunds", post[refundOrder](p))
	v1.HandleFunc("GET /v1/charges", list(p, &p.books.charges))
	v1.HandleFunc("GET /v1/refunds", list(p, &p.books.refunds))
	mux.Handle("/v1/", p.door(v1))

	mux.HandleFunc("GET /admin/faults", p.showFaults)
	mux.HandleFunc("PUT /admin/faults", p.changeFaults)
	mux.HandleFunc("GET /admin/totals", p.showTotals)
	mux.HandleFunc("GET /admin/books", p.showBooks)

	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", p.ready)
	return mux
}

// ServeHTTP implements http.Handler.
func (p *PSP) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.mux.ServeHTTP(w, r) }

// ready tells about the books. A provider that is told to be down is not ill.
func (p *PSP) ready(w http.ResponseWriter, _ *http.Request) {
	select {
	case <-p.Failed():
		http.Error(w, "the books cannot be written", http.StatusServiceUnavailable)
	case <-p.closing:
		http.Error(w, "shutting down", http.StatusServiceUnavailable)
	default:
		fmt.Fprintln(w, "ok")
	}
}

// door keeps out calls while the provider is down, and strangers.
func (p *PSP) door(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch p.Faults().Down {
		case Unavailable:
			unavailable.write(w)
			return
		case Reset:
			panic(http.ErrAbortHandler) // closes the connection without an answer
		}

		want := []byte("Bearer " + p.options.APIKey)
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), want) != 1 {
			unauthorized.write(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// post charges or refunds.
func post[O order](p *PSP) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		f, now := p.Faults(), time.Now()
		if !p.limit.allow(now, f.RateLimit) {
			p.injected(rateLimited)
			tooMany.write(w)
			return
		}

		key := r.Header.Get("Idempotency-Key")
		o, wrong := decode[O](w, r, key)
		if wrong != nil {
			wrong.write(w)
			return
		}

		request := digest(r.URL.Path, o)
		claimed, booked := p.books.begin(key, request, now, time.Duration(f.ForgetKeysAfter))
		switch claimed {
		case inUse:
			keyInUse.write(w)
			return
		case reused:
			keyReused.write(w)
			return
		}

		executes := claimed == fresh
		fate := f.fate(p.options.Seed, p.calls.Add(1))
		fate.obey(o.token(p.books), key, executes, &p.firsts, f)
		if fate.slow {
			p.injected(slowCalls)
		}
		p.pause(fate.before)

		// Crash point: the key is only claimed in memory, so a later call executes.
		if fate.errorBefore {
			if executes {
				p.books.release(key)
			}
			p.injected(errorsBefore)
			internal.write(w)
			return
		}

		if executes {
			if booked, wrong = p.execute(o, key, request, fate.decline, f); wrong != nil {
				wrong.write(w)
				return
			}
		} else {
			w.Header().Set("Idempotent-Replayed", "true")
		}

		// Crash point: in the books, not answered. The caller finds it by its key.
		p.pause(fate.after)
		switch {
		case fate.loseReply:
			p.injected(repliesLost)
			panic(http.ErrAbortHandler)
		case fate.errorAfter:
			p.injected(errorsAfter)
			w.Header().Del("Idempotent-Replayed")
			internal.write(w)
		default:
			booked.write(w)
		}
	}
}

// execute brings an order into the books. It owns the key, and frees it if nothing was written.
func (p *PSP) execute(
	o order, key, request string, decline bool, f Faults,
) (record, *problem) {
	now := time.Now().UTC()
	r, wrong := o.execute(p.books, decline, f, now)
	if wrong != nil {
		p.books.release(key)
		return record{}, wrong
	}

	r.At, r.Key, r.Request, r.Events = now, key, request, p.courier != nil
	if err := p.journal.append(r); err != nil {
		// It may be on disk: the key stays claimed until the next start reads the books.
		p.log.Error("the books cannot be written", "error", err)
		return record{}, internal
	}
	return r, nil
}

// decode reads a POST.
func decode[O order](w http.ResponseWriter, r *http.Request, key string) (o O, _ *problem) {
	if key == "" || len(key) > 255 {
		return o, invalid("idempotency_key_invalid", "Idempotency-Key must be 1 to 255 characters")
	}

	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil {
		return o, invalid("body_invalid", err.Error())
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return o, invalid("body_invalid", "the body must be one JSON object")
	}
	return o, o.check()
}
