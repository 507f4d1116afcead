package queue

// Line holds items, first in, first out. It has no lock: one goroutine at a time may use it. The
// zero value is empty. Once it has grown to the size of its load it allocates nothing more.
type Line[T any] struct {
	items []T // items[head:] wait
	head  int // index of the first item that waits
}

// Put adds an item.
func (l *Line[T]) Put(item T) {
	// half of it is gone: make room in place
	if len(l.items) == cap(l.items) && l.head > len(l.items)/2 {
		n := copy(l.items, l.items[l.head:])
		clear(l.items[n:])
		l.items, l.head = l.items[:n], 0
	}
	l.items = append(l.items, item)
}

// First returns the item that has waited longest, valid until the next Put or Take; nil if there is
// none.
func (l *Line[T]) First() *T {
	if l.head == len(l.items) {
		return nil
	}
	return &l.items[l.head]
}

// Take removes the first item and returns it; false means that there is none.
func (l *Line[T]) Take() (item T, ok bool) {
	first := l.First()
	if first == nil {
		return item, false
	}
	item, *first = *first, item
	if l.head++; l.head == len(l.items) {
		l.items, l.head = l.items[:0], 0
	}
	return item, true
}
