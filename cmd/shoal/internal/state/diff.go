package state

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/checkpoint"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/plural"
)

// shoal state diff. One goroutine runs what is here, that of the command, so nothing is locked. The
// comparison has goroutines of its own, and is waited for.

// newStateDiffCommand returns the command shoal state diff.
func newStateDiffCommand() *cobra.Command {
	var workers int
	var asJSON bool
	flags := sourceFlags{model: modelFlags{either: true}}
	cmd := &cobra.Command{
		Use:   "diff A B",
		Short: "Compare the tensors of two checkpoints, whatever their layouts and formats",
		Long: cli.Help(`Compare the tensors of two checkpoints bit by bit, whatever their layouts and formats.
The command says which tensors are in one of them only, or differ in type, shape or content.

  flag         under which names tensors are compared
  --names hf   Megatron's tensors under the names of Hugging Face, as convert writes them
  --rename     tensors of A under the names that convert would give them
  --strip      tensors of A without this beginning of their names
  --only       tensors whose names in A match, and in B, or would in A

Where one is the checkpoint of a training, and the other a model, the models are compared. What one
has under two names that are tied, such as lm_head.weight, and the other under one, is the same.

Only tensors are compared. Damage that a checksum shows is reported, and not compared further. If
only the seal of one shows damage, the command says which of the two it is, after the differences.`, "Exit codes: 0 the tensors are the same, 1 they differ or an error, 2 wrong usage.", "files"),
		Example: `  shoal state diff checkpoints/step-1000 model.safetensors --only 'model.**'
  shoal state diff megatron model --names hf --config model/config.json --only 'model.**'
  shoal state diff zero model.safetensors --rename module.= --only 'module.**'
  shoal state diff --json before after | jq -r .tensor`,
		Args: cli.Arguments(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return flags.diff(cmd, args[0], args[1], workers, asJSON)
		},
	}
	flags.addTensorsTo(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false,
		"print one JSON object for each tensor that differs")
	addWorkersFlag(cmd, &workers)
	return cmd
}

// diff compares the checkpoints with two paths, and prints how they differ; workers is the number
// of cores. It fails where they differ.
func (s *sourceFlags) diff(cmd *cobra.Command, first, second string, workers int,
	asJSON bool) error {
	if err := s.model.refuseUnused(cmd.Flags(), false); err != nil {
		return err
	}
	a, b, err := s.openBoth(first, second)
	if err != nil {
		return err
	}
	defer a.Close()
	defer b.Close()
	if err := s.checkOnly(); err != nil {
		return err
	}
	if err := s.unwrap(cmd.ErrOrStderr(), a, b); err != nil {
		return err
	}
	ctx, clear := withProgress(cmd)
	found, tied, err := checkpoint.Compare(ctx, a, b, workers)
	clear()
	if damage := (*checkpoint.SealError)(nil); err != nil && !errors.As(err, &damage) {
		return err
	}
	out := cmd.OutOrStdout()
	if failed := printAll(out, found, asJSON); failed != nil {
		return failed
	}
	for i := 0; i < len(tied) && !asJSON; i++ {
		t := &tied[i]
		fmt.Fprintf(cmd.ErrOrStderr(), "shoal: %s is only in %s, where it is the same "+
			"tensor as %s, which both have\n", quotedName(t.Tensor), t.In, quotedName(t.To))
	}
	if err != nil {
		return err
	}
	if len(found) > 0 {
		return fmt.Errorf("%s and %s differ in %s", first, second,
			plural.Of(len(found), "tensor"))
	}
	if !asJSON {
		n := len(a.Tensors)
		for _, t := range tied {
			if t.In == "A" {
				n--
			}
		}
		_, err = fmt.Fprintf(out, "%s and %s have the same %s, bit by bit\n", first,
			second, plural.Of(n, "tensor"))
	}
	return err
}

// openBoth opens the checkpoints with two paths, and selects and renames their tensors as the flags
// say. Where --names gives names to one of them alone, what was taken of that is taken of the other
// too, whichever is the first. The caller closes both.
func (s *sourceFlags) openBoth(first, second string) (a, b *checkpoint.Checkpoint, err error) {
	if a, err = s.openOneOf(first); err != nil {
		return nil, nil, err
	}
	s.renamed = true
	firstNamed := s.model.named
	if firstNamed {
		s.take(a)
	}
	if b, err = s.openOneOf(second); err != nil {
		return nil, nil, errors.Join(err, a.Close())
	}
	if !s.model.named || firstNamed || len(s.only) == 0 {
		return a, b, nil
	}
	s.take(b)
	s.renamed = false
	if err = a.Close(); err == nil {
		a, err = s.openOneOf(first)
	}
	if err != nil {
		return nil, nil, errors.Join(err, b.Close())
	}
	return a, b, nil
}

// unwrap keeps only the model of the one of two checkpoints that has it beside others, where the
// other one has a model only, and no flag says what to compare. It says so in notes. It fails where
// --names finds nothing to do.
func (s *sourceFlags) unwrap(notes io.Writer, a, b *checkpoint.Checkpoint) error {
	if s.model.names != "" && !s.model.named {
		return cli.Usagef("neither of both has the names of Megatron, for which --names hf is; " +
			"leave it out")
	}
	if !s.takesAll() {
		return nil
	}
	if w, found := b.Wrapper(); found && !a.HasBeginning(w.Prefix) {
		a = b
	} else if w, found := a.Wrapper(); !found || b.HasBeginning(w.Prefix) {
		return nil
	}
	said, err := a.ModelAlone()
	for _, note := range said {
		fmt.Fprintf(notes, "shoal: %s\n", note)
	}
	return err
}
