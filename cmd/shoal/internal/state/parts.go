package state

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/format/ranks"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/state/layout"
)

// shoal state layout. One goroutine runs what is here, that of the command, so nothing is locked.

// newStateLayoutCommand returns the command shoal state layout.
func newStateLayoutCommand() *cobra.Command {
	var rank int
	var asJSON bool
	var preset layoutFlags
	var source sourceFlags
	cmd := &cobra.Command{
		Use:   "layout FILE",
		Short: "Say what a layout puts on a rank, or write a preset as a file to change",
		Long: cli.Help(`Say which tensors lie in the memory of a rank, and in which file a checkpoint has each.
FILE is the shoal-layout.json of a checkpoint, written or to be written; - is standard input.

With --preset, FILE is a checkpoint, and the command prints the layout that the preset gives its
tensors, as YAML for --layout of other commands. Edit it for stages with different numbers of layers
or shards of different sizes: pp=spread(1,30) becomes pp=spread(1,30,cuts=6/14/22).`, cli.ExitCodes, "files"),
		Example: `  shoal state layout checkpoints/step-1000/shoal-layout.json --rank 3
  shoal state layout --json - < shoal-layout.json | jq -r .file
  shoal state layout model --mesh pp=4,tp=2 --preset megatron-core > layout.yaml`,
		Args: cli.Arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if preset.isGiven() {
				if err := preset.check(); err != nil {
					return err
				}
				if cmd.Flags().Changed("rank") {
					return cli.Usagef("--rank is for the layout of a file, and a preset is " +
						"written for all ranks; leave it out")
				}
				if err := source.model.refuseUnused(cmd.Flags(),
					strings.Contains(preset.preset, "megatron-core")); err != nil {
					return err
				}
				return writePreset(cmd.OutOrStdout(), args[0], &preset, &source, asJSON)
			}
			if err := cli.RefuseFlags(cmd.Flags(),
				"the layout of a checkpoint, which --preset makes",
				"only", "strip", "rename", "names", "config", "kv-heads",
				"vocab-size", "virtual-stages"); err != nil {
				return err
			}
			text, err := readLayout(cmd.InOrStdin(), args[0])
			if err != nil {
				return err
			}
			d, err := ranks.Parse(text)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			if rank < 0 || rank >= d.Layout.Ranks {
				return cli.Usagef("--rank %d: the layout has ranks from 0 to %d", rank,
					d.Layout.Ranks-1)
			}
			return listParts(cmd.OutOrStdout(), d.Parts(rank), d.Layout.Tensors, asJSON)
		},
	}
	cmd.Flags().IntVar(&rank, "rank", 0, "the rank")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a tensor, with its "+
		"pieces: which box of which whole tensor lies where in it; of a preset, the layout")
	preset.addPresetTo(cmd.Flags(), "")
	source.addTensorsTo(cmd.Flags())
	return cmd
}

// writePreset writes to out the layout that a preset gives the tensors of the checkpoint at path.
// It does not check that the shares of the ranks are equal, since the layout is there to be
// changed.
func writePreset(out io.Writer, path string, preset *layoutFlags, source *sourceFlags,
	asJSON bool) error {
	c, err := source.open(path)
	if err != nil {
		return err
	}
	defer c.Close()
	spec, err := preset.spec(c, &source.model)
	if err != nil {
		return err
	}
	if asJSON {
		return json.NewEncoder(out).Encode(spec)
	}
	text, err := spec.YAML()
	if err != nil {
		return err
	}
	_, err = out.Write(text)
	return err
}

// readLayout reads a layout file, or standard input in if path is "-".
func readLayout(in io.Reader, path string) (text []byte, err error) {
	name := path
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil, cli.Usagef(
			"%s is a folder: give the %s in it, or --preset for the layout of a checkpoint", path,
			ranks.LayoutName)
	}
	if path == "-" {
		name = "standard input"
		// What is cut off does not parse.
		text, err = io.ReadAll(io.LimitReader(in, ranks.MaxLayout))
	} else {
		text, err = durable.Read(path, ranks.MaxLayout)
	}
	if err == nil && !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		return nil, cli.Usagef("%s is not the %s of a checkpoint: give that, or --preset for the "+
			"layout of a checkpoint", name, ranks.LayoutName)
	}
	return text, cli.AsUsage(err)
}

// partJSON is a tensor in the memory of a rank, in the output for programs. Its file is the one
// that has it in a checkpoint.
type partJSON struct {
	Tensor string      `json:"tensor"`
	Type   string      `json:"type"`
	Shape  []int       `json:"shape"`
	File   string      `json:"file"`
	Pieces []localJSON `json:"pieces"`
}

// localJSON is a box of a whole tensor, and where it lies in the local one: its first element, and
// strides, in elements.
type localJSON struct {
	Tensor  string `json:"tensor"`
	From    []int  `json:"from"`
	Shape   []int  `json:"shape"`
	At      int    `json:"at"`
	Strides []int  `json:"strides"`
}

// listParts prints what a rank holds: a table, or as JSON an object a part. tensors are those of
// the whole layout.
func listParts(out io.Writer, parts []ranks.Part, tensors []layout.Tensor, asJSON bool) error {
	rows := [][]string{{"TENSOR", "TYPE", "SHAPE", "BYTES", "FILE"}}
	encode := json.NewEncoder(out)
	for _, p := range parts {
		if !asJSON {
			bytes := p.Shape.Box().Elements() * p.DType.Size()
			rows = append(rows,
				[]string{quotedName(p.Name), p.DType.String(), p.Shape.String(),
					strconv.Itoa(bytes),
					p.File})
			continue
		}
		j := partJSON{p.Name, p.DType.String(), append([]int{}, p.Shape...), p.File, []localJSON{}}
		for _, x := range p.Pieces {
			from := []int{}
			for _, s := range x.Box {
				from = append(from, s.From)
			}
			j.Pieces = append(j.Pieces,
				localJSON{tensors[x.Tensor].Name, from, append([]int{}, x.Box.Shape()...),
					x.View.At(x.Box), append([]int{}, x.View.Strides...)})
		}
		if err := encode.Encode(j); err != nil {
			return err
		}
	}
	if asJSON {
		return nil
	}
	return cli.Table(out, rows)
}
