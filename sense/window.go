package sense

import "slices"

// WindowSize is the number of samples that a Window keeps.
const WindowSize = 8

// Window holds the newest samples of a series, and knows their minimum and median. The zero value
// has no samples. Only Add changes it; one goroutine uses it at a time.
type Window struct {
	samples [WindowSize]float64 // a ring: sample i lies at i % WindowSize
	n       int                 // samples ever added
}

// Add adds a sample, in place of the oldest when the window is full.
func (w *Window) Add(sample float64) {
	w.samples[w.n%WindowSize] = sample
	w.n++
}

// Count returns the number of samples ever added.
func (w *Window) Count() int { return w.n }

// Min returns the least sample of the window, which must not be empty.
func (w *Window) Min() float64 { return slices.Min(w.samples[:min(w.n, WindowSize)]) }

// Max returns the greatest sample of the window, which must not be empty.
func (w *Window) Max() float64 { return slices.Max(w.samples[:min(w.n, WindowSize)]) }

// Newest returns a window with the newest samples alone, as many as there are up to n.
func (w *Window) Newest(n int) (newest Window) {
	for i := max(0, w.n-min(n, WindowSize)); i < w.n; i++ {
		newest.Add(w.samples[i%WindowSize])
	}
	return newest
}

// Median returns the median of the window, which must not be empty; of an even number of samples
// the upper of the two in the middle.
func (w *Window) Median() float64 {
	sorted := slices.Sorted(slices.Values(w.samples[:min(w.n, WindowSize)]))
	return sorted[len(sorted)/2]
}

// AppendNewest appends to a list, and takes out the oldest where it has as many as it may have. The
// list is changed in place: the caller uses what is returned instead.
func AppendNewest[T any](list []T, x T, most int) []T {
	if len(list) == most {
		list = slices.Delete(list, 0, 1)
	}
	return append(list, x)
}
