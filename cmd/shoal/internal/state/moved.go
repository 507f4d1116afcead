package state

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/checkpoint"
	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/internal/plural"
)

// What reshard and convert say of what they have written. One goroutine runs it, that of the
// command.

// movedJSON is what a move has written in the output for programs, in bytes.
type movedJSON struct {
	From    string `json:"from"`
	To      string `json:"to"`
	Format  string `json:"format"`
	Tensors int    `json:"tensors"`
	Bytes   int64  `json:"bytes"`            // with replicas and padding
	Reused  int64  `json:"reused,omitempty"` // of these, by an earlier run
	// of both; absent when an earlier run has finished
	Fingerprint string `json:"fingerprint,omitempty"`
	// an earlier run has finished, and this one found all in place
	Earlier bool `json:"earlier,omitempty"`

	// files whose parts were taken from replicas
	Unread        []string `json:"unread,omitempty"`
	TensorsBehind int      `json:"tensors_behind,omitempty"` // that --names leaves out
	// for which the format has no place
	ValuesBehind int `json:"values_behind,omitempty"`
	// files in SRC's folder that are no part of it
	Beside []string `json:"beside,omitempty"`
	// tensors that DeepSpeed makes of others, which were compared
	Implied int           `json:"implied,omitempty"`
	Altered []alteredJSON `json:"altered,omitempty"`
	// tensors with another type by --dtype: those that it rounds, and those that it widens exactly
	Rounded int `json:"rounded,omitempty"`
	Widened int `json:"widened,omitempty"`
}

// alteredJSON is a value that DST has in another form, in the output for programs.
type alteredJSON struct {
	Value string `json:"value"`
	Was   string `json:"was"`
	Is    string `json:"is"`
}

// newMovedJSON returns what the move of c from src to dst has written; lost is the number of values
// that the format has no place for.
func (m *moveFlags) newMovedJSON(src, dst string, c *checkpoint.Checkpoint, out *format.Output,
	lost int,
	r *checkpoint.Report) movedJSON {
	j := movedJSON{
		From: src, To: dst, Format: out.Format, Tensors: len(out.Tensors),
		Bytes: r.Moved + r.Reused, Reused: r.Reused, Earlier: r.AlreadyDone,
		Unread: r.Unreadable, TensorsBehind: m.source.model.behind, ValuesBehind: lost,
		Beside:  c.Extras,
		Implied: len(out.Implied),
		Rounded: m.rounded.Rounded, Widened: m.rounded.Widened,
	}
	if !r.AlreadyDone {
		j.Fingerprint = r.State.String()
	}
	for _, a := range out.Altered {
		j.Altered = append(j.Altered, alteredJSON{a.Path, a.Was, a.Is})
	}
	return j
}

// printMoved prints in a line what a move has written. altered says whether --dtype has
// given tensors another type.
func printMoved(to io.Writer, src, dst string, out *format.Output, r *checkpoint.Report,
	altered bool) error {
	if r.AlreadyDone {
		_, err := fmt.Fprintf(to, "%s was finished by an earlier run\n", dst)
		return err
	}
	reused := ""
	if r.Reused > 0 {
		reused = fmt.Sprintf(", %d of them by an earlier run", r.Reused)
	}
	same := ", the same as of " + src
	if altered {
		same = ""
	}
	_, err := fmt.Fprintf(to, "%s: %s, %s, %d bytes%s, fingerprint %v%s\n", dst, out.Format,
		plural.Of(len(out.Tensors), "tensor"), r.Moved+r.Reused, reused, r.State, same)
	return err
}

// printNotes writes to notes what of SRC is not in DST, or not as it was. lost is the number of
// values that the format has no place for; optimizer has what is to be said of the optimizer.
func (m *moveFlags) printNotes(notes io.Writer, c *checkpoint.Checkpoint, out *format.Output,
	lost int,
	optimizer []string) {
	for _, note := range slices.Concat(m.source.notes, optimizer, out.Notes) {
		fmt.Fprintf(notes, "shoal: %s\n", note)
	}
	// behind says that n things stay behind, and why; nothing for 0.
	behind := func(n int, what, why string) {
		if n > 0 {
			fmt.Fprintf(notes, "shoal: %s %s behind, %s\n", plural.Of(n, what),
				plural.Verb(n, "stays", "stay"), why)
		}
	}
	behind(m.source.model.behind, "tensor",
		"which are random numbers of ranks, or beside parameters")
	behind(lost, "value", "for which the format "+m.format+" has no place")
	if m.rounded.Changed() {
		fmt.Fprintf(notes, "shoal: %s: DST is another state than SRC, with a fingerprint of its "+
			"own\n", describeCasts(m.rounded))
	}
	if text := describeSuspicion(c); text != "" {
		fmt.Fprintf(notes, "shoal: %s\n", text)
	}
	if n := c.JobWorkers(); n > 0 {
		fmt.Fprintf(notes, "shoal: what each worker of the job has for itself stays behind, such "+
			"as random states; there %s %s\n", plural.Verb(n, "is", "are"), plural.Of(n, "worker"))
	}
	if n := len(c.Extras); n > 0 {
		var names []string
		for _, name := range c.Extras {
			names = append(names, quotedName(name))
		}
		fmt.Fprintf(notes, "shoal: %s in the folder of SRC %s no part of it: %s; shoal reads "+
			"each by its own name\n",
			plural.Of(n, "file"), plural.Verb(n, "is", "are"), joinFirst(names))
	}
	behind(len(out.Implied), "tensor",
		"which DeepSpeed makes of the master weights; all were compared with these")
	if n := len(out.Altered); n > 0 {
		fmt.Fprintf(notes, "shoal: %s %s out as something else, since torch.load with "+
			"weights_only takes no such objects: %s\n",
			plural.Of(n, "value"), plural.Verb(n, "comes", "come"), describeAltered(out.Altered))
	}
	if m.format == "pt" && c.Nested && len(m.source.rename) == 0 {
		fmt.Fprintln(notes, "shoal: nested dicts and lists of SRC are one dict in DST, with "+
			"their keys joined by dots")
	}
}

// describeCasts says which tensors have another type.
func describeCasts(r checkpoint.CastReport) string {
	var texts []string
	add := func(n int, how string) {
		if n > 0 {
			texts = append(texts, plural.Of(n, "tensor")+" "+plural.Verb(n, "is", "are")+how)
		}
	}
	add(r.Rounded, " rounded")
	add(r.Widened, " made wider, which changes no number")
	if k := r.Optimizer; k > 0 {
		texts = append(texts, fmt.Sprintf("%d of the optimizer %s as %s", k,
			plural.Verb(k, "stays", "stay"), plural.Verb(k, "it is", "they are")))
	}
	return strings.Join(texts, ", ")
}

// describeAltered describes the first few of the values that were altered.
func describeAltered(list []format.Altered) string {
	var texts []string
	for _, a := range list {
		texts = append(texts, fmt.Sprintf("%s %s as %s", a.Was, quotedName(a.Path), a.Is))
	}
	return joinFirst(texts)
}

// joinFirst joins the first few texts, and says how many more there are.
func joinFirst(texts []string) string {
	const most = 5
	some := slices.Clone(texts[:min(most, len(texts))])
	if n := len(texts) - most; n > 0 {
		some = append(some, fmt.Sprintf("and %d more", n))
	}
	return strings.Join(some, ", ")
}
