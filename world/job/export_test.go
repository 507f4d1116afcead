package job

import "github.com/shoal-ml/shoal/data/cursor"

// Cursor returns where the job is in its data, for tests.
func (w *World) Cursor() cursor.Cursor { return w.cursor }

// Now returns the seconds since the start of the job, for tests.
func (w *World) Now() float64 { return w.now }
