// Package state has shoal state: the commands about checkpoints.
package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/checkpoint"
	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/plural"
)

// shoal state, with ls and check. One goroutine runs what is here, that of the command, so nothing
// is locked. Only what opens or checks a checkpoint reads files; functions that return a text, or a
// list, are pure.

// NewCommand returns the command shoal state.
func NewCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "state",
		Short: "Inspect training state in files, move it to other layouts and formats, verify it",
		Long: cli.Help(`Inspect training state in files, move it to other layouts and formats, and verify that it is whole.
No code in a pickle is run.

Every command reads safetensors (a file, a folder with an index, shards), torch.save, torch's
distributed checkpoints, Megatron-LM, DeepSpeed, and shoal's own format with a file for each rank.`, cli.ExitCodes, "files"),
		Example: `  shoal state ls checkpoints/step-1000
  shoal state check checkpoints/step-1000
  shoal state convert zero/global_step100 model.pt --format pt --only 'module.**'
  shoal state reshard megatron/iter_0001000 out --mesh pp=4,tp=2 --preset megatron-core
  shoal state diff megatron/iter_0001000 out --only 'model.**'`,
		PersistentPreRun: func(cmd *cobra.Command, _ []string) {
			cmd.SetContext(cli.WithExitOnSignal(cmd.Context()))
		},
		RunE: cli.RunGroup,
	}
	cmd.AddCommand(newStateLsCommand(), newStateCheckCommand(), newStateSealCommand(),
		newStateVerifyCommand(), newStateDiffCommand(),
		newStatePlanCommand(), newStateReshardCommand(), newStateConvertCommand(),
		newStateLayoutCommand())
	return cmd
}

// newStateLsCommand returns the command shoal state ls.
func newStateLsCommand() *cobra.Command {
	var asJSON, values bool
	cmd := &cobra.Command{
		Use:   "ls PATH",
		Short: "List the tensors of a checkpoint",
		Long: cli.Help(`List the tensors of a checkpoint. PATH is its folder, or a file.

  column   meaning
  PLACE    rank that has a part, where the format does not say how the parts fit together
  FILES    number of files in which the tensor lies`, cli.ExitCodes, "files"),
		Example: `  shoal state ls model.safetensors
  shoal state ls checkpoints/step-1000
  shoal state ls --values checkpoints/step-1000
  shoal state ls --json checkpoint.pt | jq -r 'select(.bytes > 1e9) | .tensor'`,
		Args: cli.Arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := checkpoint.Open(args[0])
			if err != nil {
				return err
			}
			defer c.Close()
			switch out := cmd.OutOrStdout(); {
			case asJSON:
				return listJSON(out, c.Checkpoint, values)
			case values:
				return listValues(out, c.Checkpoint)
			default:
				return listTensors(out, c)
			}
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false,
		"print one JSON object a tensor, with every piece and where it lies")
	cmd.Flags().BoolVar(&values, "values", false,
		"list what is no tensor: steps, learning rates, arguments")
	return cmd
}

// newStateCheckCommand returns the command shoal state check.
func newStateCheckCommand() *cobra.Command {
	var asJSON, read bool
	var workers int
	cmd := &cobra.Command{
		Use:   "check PATH",
		Short: "Check that a checkpoint is whole",
		Long: cli.Help(`Check that a checkpoint is whole: each file is there and complete, and each element of each tensor
lies in exactly one place. PATH is its folder, or a file.

The command says what it cannot know, which is no fault: for example whether shards are missing that
no file mentions, or which tensor is which after damage. With --json that is an object "unknown".

  flag      what is read
  (none)    names, types, shapes and places; tensors only where names have to be proved
  --read    every byte that has a checksum in its file, as the files of torch.save have

Files of safetensors have no checksums; shoal state seal makes some.`, "Exit codes: 0 no fault, 1 a fault or an error, 2 wrong usage.", "files"),
		Example: `  shoal state check checkpoints/step-1000
  shoal state check --read checkpoints/step-1000
  shoal state check --json checkpoints/step-1000 | jq -r '.what // .unknown'`,
		Args: cli.Arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := checkpoint.Open(args[0])
			if err != nil {
				return err
			}
			defer c.Close()
			return printCheck(cmd, args[0], c, asJSON, read, workers)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false,
		"print one JSON object a fault, and where there is none, for each thing that is not known")
	cmd.Flags().BoolVar(&read, "read", false,
		"read all bytes too, and compare them with the checksums in the files")
	addWorkersFlag(cmd, &workers)
	return cmd
}

// listTensors prints a table of the tensors of c, a summary, and what is wrong with the description
// of a job.
func listTensors(out io.Writer, c *checkpoint.Checkpoint) error {
	rows := [][]string{{"TENSOR", "PLACE", "TYPE", "SHAPE", "BYTES", "FILES"}}
	var bytes int64
	for i := range c.Tensors {
		t := &c.Tensors[i]
		bytes += t.Bytes()
		rows = append(rows,
			[]string{quotedName(t.Name), cli.OrDash(t.Coords.String()), t.DType.String(),
				t.Shape.String(),
				strconv.FormatInt(t.Bytes(), 10), strconv.Itoa(len(fileNames(t)))})
	}
	if err := cli.Table(out, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%s: %s, %d bytes, %s\n", c.Format,
		plural.Of(len(c.Tensors), "tensor"), bytes, plural.Of(len(c.Values), "value"))
	if err == nil {
		err = explainParts(out, c.Checkpoint)
	}
	if f := c.JobFault(); f != nil && err == nil {
		_, err = fmt.Fprintln(out, f)
	}
	return err
}

// explainParts prints why parts of tensors could not be joined, where that is known.
func explainParts(out io.Writer, c *format.Checkpoint) error {
	for _, t := range unjoinedTensors(c) {
		if _, err := fmt.Fprintf(out, "%s and others %s\n", quotedName(t.Name),
			whyUnjoined(t)); err != nil {
			return err
		}
	}
	return nil
}

// whyUnjoined says why the parts of a tensor were not joined.
func whyUnjoined(t *format.Tensor) string { return "stay as ranks have them: " + t.WhyPart }

// unjoinedTensors returns the tensors of which it is known why their parts could not be joined, the
// first for each reason. They stay those of c.
func unjoinedTensors(c *format.Checkpoint) (list []*format.Tensor) {
	said := map[string]bool{"": true}
	for i := range c.Tensors {
		if t := &c.Tensors[i]; !said[t.WhyPart] {
			said[t.WhyPart] = true
			list = append(list, t)
		}
	}
	return list
}

// quotedName returns a name from a file, in quotes if it could do something to the terminal or
// break a table.
func quotedName(name string) string {
	if quoted := strconv.Quote(name); quoted != `"`+name+`"` || strings.Contains(name, " ") ||
		name == "" {
		return quoted
	}
	return name
}

// fileNames returns the set of files in which a tensor lies.
func fileNames(t *format.Tensor) map[string]bool {
	files := map[string]bool{}
	for _, p := range t.Pieces {
		files[p.File] = true
	}
	return files
}

// listValues prints a table of what is no tensor in c.
func listValues(out io.Writer, c *format.Checkpoint) error {
	rows := [][]string{{"VALUE", "IS"}}
	for _, v := range c.Values {
		var text strings.Builder
		e := json.NewEncoder(&text)
		e.SetEscapeHTML(false)
		if err := e.Encode(plainValue(v.Data)); err != nil {
			return err
		}
		is := []rune(cli.Visible(strings.TrimSuffix(text.String(), "\n"), false))
		if len(is) > 100 {
			is = append(is[:97:97], '.', '.', '.')
		}
		rows = append(rows, []string{quotedName(v.Path), string(is)})
	}
	if len(c.Values) == 0 {
		_, err := fmt.Fprintf(out, "%s: 0 values\n", c.Format)
		return err
	}
	return cli.Table(out, rows)
}

// plainValue returns a value in a form that JSON has: a number that JSON does not have becomes a
// string.
func plainValue(v any) any {
	switch v := v.(type) {
	case format.Unread:
		return v.Why.Error()
	case *big.Int:
		return v.String()
	case float64:
		if v-v != 0 { // infinite, or no number
			return strconv.FormatFloat(v, 'g', -1, 64)
		}
	case []any:
		list := make([]any, len(v))
		for i, x := range v {
			list[i] = plainValue(x)
		}
		return list
	}
	return v
}

// tensorJSON is a tensor in the output for programs.
type tensorJSON struct {
	Tensor string      `json:"tensor"`
	Place  string      `json:"place,omitempty"`
	Type   string      `json:"type"`
	Shape  []int       `json:"shape"`
	Bytes  int64       `json:"bytes"`
	Pieces []pieceJSON `json:"pieces"`

	Replicas []pieceJSON `json:"replicas,omitempty"` // further copies of parts
	Apart    string      `json:"apart,omitempty"`    // why it is a part
}

// pieceJSON is a piece of a tensor in the output for programs.
type pieceJSON struct {
	From    []int  `json:"from"`
	Shape   []int  `json:"shape"`
	File    string `json:"file"`
	Offset  int64  `json:"offset"`
	Strides []int  `json:"strides,omitempty"` // in elements; without them it is packed
}

// valueJSON is a value that is no tensor in the output for programs.
type valueJSON struct {
	Value string `json:"value"`
	Is    any    `json:"is"`
}

// listJSON prints a JSON object for each tensor of c, or for each of its values.
func listJSON(out io.Writer, c *format.Checkpoint, values bool) error {
	encode := json.NewEncoder(out)
	if values {
		for _, v := range c.Values {
			if err := encode.Encode(valueJSON{v.Path, plainValue(v.Data)}); err != nil {
				return err
			}
		}
		return nil
	}
	for i := range c.Tensors {
		t := &c.Tensors[i]
		j := tensorJSON{t.Name, t.Coords.String(), t.DType.String(), append([]int{}, t.Shape...),
			t.Bytes(), newPieceJSONs(t.Pieces), newPieceJSONs(t.Replicas), t.WhyPart}
		if err := encode.Encode(j); err != nil {
			return err
		}
	}
	return nil
}

// newPieceJSONs returns pieces in the form of the output for programs; an empty list, not nil, for
// none.
func newPieceJSONs(list []format.Piece) []pieceJSON {
	out := []pieceJSON{}
	for _, p := range list {
		from := []int{}
		for _, s := range p.Box {
			from = append(from, s.From)
		}
		out = append(out, pieceJSON{from, append([]int{}, p.Box.Shape()...), p.File, p.Offset,
			p.Strides})
	}
	return out
}

// printCheck checks the checkpoint c, which was opened by path, and prints what is wrong, or that
// nothing is. It also fails if something is wrong. With read it reads all bytes that have a
// checksum. workers is the number of cores.
func printCheck(cmd *cobra.Command, path string, c *checkpoint.Checkpoint, asJSON, read bool,
	workers int) error {
	out, faults, sums, blind := cmd.OutOrStdout(), c.Faults(), "", ""
	ctx, clear := withProgress(cmd)
	defer clear()
	if len(c.Files.Archives()) > 0 {
		sums = "; --read compares checksums too"
	}
	if read {
		r, err := c.Records(ctx, workers)
		if err != nil {
			return err
		}
		faults = append(faults, r.Faults...)
		sums = fmt.Sprintf(", %s with the right checksum", plural.Of(r.Compared, "record"))
		if blind = unseenDamage(r); blind != "" {
			sums = "; " + blind
		}
	}
	if len(faults) == 0 {
		var err error
		if faults, err = c.Prove(ctx, workers); err != nil {
			return err
		}
	}
	clear()
	if err := printAll(out, faults, asJSON); err != nil {
		return err
	}
	if len(faults) > 0 {
		return fmt.Errorf("%s has %s; restore it from another copy, or save it again", path,
			plural.Of(len(faults), "fault"))
	}
	if asJSON {
		return printAll(out, listUnknown(c, blind), true)
	}
	var open []string
	if c.Doubt != "" {
		open = append(open, "may not be whole ("+c.Doubt+")")
	}
	if text := describeSuspicion(c); text != "" {
		open = append(open, "is suspicious ("+text+")")
	}
	verdict := "is whole"
	if open != nil {
		verdict = "has no fault, but " + strings.Join(open, ", and ")
	}
	_, err := fmt.Fprintf(out, "%s %s: %s, %s, every element in exactly one place%s\n", path,
		verdict, c.Format, plural.Of(len(c.Tensors), "tensor"), sums)
	return errors.Join(err, explainParts(out, c.Checkpoint))
}

// describeSuspicion says why a checkpoint can hardly be what somebody wanted to save; "" if it can.
func describeSuspicion(c *checkpoint.Checkpoint) string {
	names := c.Placeholders()
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf(
		"%s %s no elements, such as %s: placeholders of parameters that other ranks "+
			"had, as a state_dict has that is saved under DeepSpeed's ZeRO-3 without gathering "+
			"them; "+
			"save it with save_16bit_model, or give shoal DeepSpeed's own checkpoint",
		plural.Of(len(names), "tensor"), plural.Verb(len(names), "has", "have"),
		quotedName(names[0]))
}

// unseenDamage says which damage the checksums could not show; "" if they cover everything.
func unseenDamage(r *checkpoint.Records) string {
	switch {
	case r.Compared+r.WithoutChecksum == 0:
		return "its files have no checksums: shoal state seal makes some"
	case r.WithoutChecksum == 0:
		return ""
	}
	return fmt.Sprintf("%s without a checksum, which torch.serialization.set_crc32_options "+
		"leaves out: damage there cannot be seen, but shoal state seal makes some",
		plural.Of(r.WithoutChecksum, "record"))
}

// unknownJSON is what a check leaves open, in the output for programs: no fault, and no proof that
// there is none.
type unknownJSON struct {
	Name    string `json:"name,omitempty"` // of the first tensor that it is about
	Unknown string `json:"unknown"`
}

// listUnknown lists what a check without faults leaves open. blind is the result of unseenDamage.
func listUnknown(c *checkpoint.Checkpoint, blind string) (list []unknownJSON) {
	for _, text := range []string{c.Doubt, blind} {
		if text != "" {
			list = append(list, unknownJSON{Unknown: text})
		}
	}
	if text := describeSuspicion(c); text != "" {
		list = append(list, unknownJSON{c.Placeholders()[0], text})
	}
	for _, t := range unjoinedTensors(c.Checkpoint) {
		list = append(list, unknownJSON{t.Name, whyUnjoined(t)})
	}
	return list
}

// printAll prints what was found, a line each, or as JSON an object each.
func printAll[T any](out io.Writer, found []T, asJSON bool) error {
	for _, x := range found {
		var err error
		if asJSON {
			err = json.NewEncoder(out).Encode(x)
		} else {
			_, err = fmt.Fprintln(out, cli.Visible(fmt.Sprint(x), false))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
