package replay

import (
	"testing"

	"github.com/shoal-ml/shoal/decide/sched"
)

// FuzzAnswer reads answers of a program: each is refused, or decides of all jobs of the view.
func FuzzAnswer(f *testing.F) {
	for _, text := range []string{`{"want":{"a":1,"b":2},"because":{"a":"first"},"again":60}`,
		`{"want":{}}`, `{}`, `{"want":{"c":1}}`, `{"want":{"a":1e99}}`, `{"want":{"a":1},"again":-1}`,
		`{"want":null}`, `[]`, `{"want":{"a":1}} {`, "\x00"} {
		f.Add(text)
	}
	v := &sched.View{Now: 5, Slots: 4, Jobs: []*sched.Job{{ID: "a"}, {ID: "b"}}}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := parseAnswer(v, []byte(text))
		if err != nil {
			return
		}
		if len(d.Want) != len(v.Jobs) || d.Again != 0 && d.Again < v.Now {
			t.Errorf("%q decides %+v", text, d)
		}
		for i := range v.Jobs {
			d.Because(i)
		}
	})
}
