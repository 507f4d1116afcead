package sense

// Duration is a length of time in nanoseconds, as time.Duration is, or a time since some moment
// that stays the same. It is a type of its own because package time also brings the clock.
type Duration int64

// Second is a second.
const Second Duration = 1e9

// Seconds returns the duration as a number of seconds.
func (d Duration) Seconds() float64 { return float64(d/Second) + float64(d%Second)/1e9 }
