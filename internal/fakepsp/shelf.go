package fakepsp

// shelf holds the charges, or the refunds, in the order of the journal.
type shelf[T any] struct {
	all   []*item[T]
	byID  map[string]*item[T]
	byKey map[string][]*item[T] // more than one only if the key was forgotten in between
}

type item[T any] struct {
	key      string
	position int // in all
	value    *T
}

func newShelf[T any]() shelf[T] {
	return shelf[T]{byID: map[string]*item[T]{}, byKey: map[string][]*item[T]{}}
}

func (s *shelf[T]) add(id, key string, value *T) {
	i := &item[T]{key, len(s.all), value}
	s.all = append(s.all, i)
	s.byID[id] = i
	s.byKey[key] = append(s.byKey[key], i)
}

// page returns up to limit items after the one of that id, or from the beginning. found is false if
// there is no such item.
func (s *shelf[T]) page(after string, limit int) (items []*item[T], more, found bool) {
	rest := s.all
	if after != "" {
		i := s.byID[after]
		if i == nil {
			return nil, false, false
		}
		rest = rest[i.position+1:]
	}
	return rest[:min(limit, len(rest))], len(rest) > limit, true
}
