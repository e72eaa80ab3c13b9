"""SEDD: Discrete Diffusion Modeling by Estimating the Ratios of the Data Distribution
(Lou, Meng and Ermon, 2023).

MD4's network predicts clean tokens; SEDD's estimates scores, s_theta(x, t)_y = p_t(y) / p_t(x), for
sequences y that differ from x in one position. The paper's equations, for one position:

    forward (section 2)        dp_t/dt = sigma'(t) Q p_t, with Q absorbing or uniform (section 3.3),
                               Q(y, x) the rate from x to y;
                               sigma(t) = -log alpha(t) of our schedules, and alpha(1) > 0
    reverse (section 2)        from x to y at the rate sigma'(t) Q(x, y) p_t(y) / p_t(x)
    score entropy (def. 3.1)   sum over y != x of w (s_y - r_y log s_y + K(r_y)), K(a) = a log a - a
    denoising (theorem 3.4)    r_y = q(y | x_0) / q(x | x_0), whose expectation is the true ratio
    bound (theorem 3.6)        -log p(x_0) <= integral_0^1 E_q sum over y != x of
                               sigma'(t) Q(x, y) (s_y - r_y log s_y + K(r_y)) dt + end terms

The end terms are KL(q(z_1 | x_0) || p(z_1)), and a reconstruction term if sigma(0) > 0. Samples
start from p(z_1), uniform tokens or masks, and the bound holds for their distribution in the limit
of short steps. (This needs sigma(0) = 0. Otherwise the bound predicts what is noisy at t = 0
without the network, while the samplers' last step uses it.)

If p(z_1) is all masks, the first term is infinite, as a share alpha(1) of tokens is visible under
q. Masks are therefore drawn with probability (1 - alpha(t)) / (1 - alpha(1)) in place of
1 - alpha(t): under that process the term is 0. Its reverse rates are the same,
-alpha' / (1 - alpha) from a mask to its token, and so are scores, score entropy and weights.

Under the absorbing chain only masks move, and only to tokens, and the true score there is
alpha / (1 - alpha) = 1 / (e^sigma - 1) times the posterior mean of the clean token (MD4,
proposition 1). The network's output is scaled by that (and by V), so that it need not learn it:
log s = output - log(e^sigma - 1) - log V. A network whose outputs are log-probabilities plus log V
is MD4: the scores then sum to alpha / (1 - alpha) and the bound becomes MD4's. In general they do
not (see `evaluation.consistency`). Under the uniform chain log s is the output itself, 0 at x.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from partita.contracts.batch import Batch
from partita.contracts.layouts import DENSE, Layout, Queries
from partita.contracts.loss import Loss
from partita.contracts.shapes import Indices, Labels, RowTimes, Tokens
from partita.errors import require
from partita.methods.base import METHODS, About, NetworkMethod, check_batch, check_conditioning
from partita.methods.contracts import ScoreModel
from partita.methods.masked_method import TIME_SCALE
from partita.networks.base import Network, check_bidirectional
from partita.networks.kinds import new_network, options_for
from partita.networks.options import TransformerOptions
from partita.processes.ctmc import Graph, noise_rate, total_noise
from partita.processes.draws import Noised, even_times, positive_time
from partita.processes.graphs import make_graph
from partita.randomness import Noise
from partita.schedules import Schedule, make_schedule


@METHODS.register("sedd")
class SEDD(NetworkMethod, ScoreModel):
    """Score entropy discrete diffusion: a network estimates ratios of probabilities."""

    about = About(
        paper="Discrete Diffusion Modeling by Estimating the Ratios of the Data Distribution"
        " (Lou et al., 2023)",
        equation="theorem 3.6",
        loss="denoising score entropy, weighted to a bound; absorbing noise",
        choices={
            "schedule": "mdlm:loglinear (the default), mdlm:geometric: those that end above 0",
            "conditioning": "what the network is conditioned on: sigma (the default), time or none",
            "options.graph": "absorbing or uniform",
        },
    )
    network: Network
    graph: Graph
    schedule: Schedule
    default_graph: ClassVar[str] = "absorbing"
    default_schedule: ClassVar[str] = "mdlm:loglinear"  # sigma = -log(1 - (1 - eps) t), as theirs
    default_conditioning: ClassVar[str] = "sigma"

    def __init__(
        self,
        network: Network,
        *,
        graph: str | Graph | None = None,
        schedule: str | Schedule | None = None,
        conditioning: str | None = None,
    ) -> None:
        """`graph` is "absorbing", "uniform" or a custom one (`Rates`), over the network's ids.

        The mask of an absorbing graph is the network's last id. `conditioning` says what the
        network is conditioned on: "sigma", the "time" t, or "none".
        """
        super().__init__()
        check_bidirectional(network)
        self.network = network
        ids = network.config.vocab_size
        graph = graph or self.default_graph
        extra = graph.states - graph.tokens if isinstance(graph, Graph) else graph == "absorbing"
        self.graph = make_graph(graph, ids - int(extra))
        least = self.graph.tokens if self.graph.mask_id is not None else self.graph.states
        outputs = network.config.outputs
        remedy = "give it one for each token; only the absorbing chain has a mask among its ids"
        require(outputs >= least, "network", f"has {outputs} outputs for {least} scores", remedy)
        self.schedule = make_schedule(schedule or self.default_schedule)
        self.conditioning = conditioning or self.default_conditioning
        self._check()

    def _check(self) -> None:
        end = float(self.schedule.alpha(torch.ones((), dtype=torch.float64, device="cpu")))
        problem = "ends at alpha = 0, where sigma = -log alpha is infinite and scores are 0"
        remedy = "use a schedule that stops before, such as 'mdlm:loglinear' or 'mdlm:geometric'"
        require(end > 0, "schedule", problem, remedy)
        check_conditioning(self.conditioning, self.network)

    @classmethod
    def build(
        cls,
        network: TransformerOptions,
        tokens: int,
        *,
        graph: str | None = None,
        schedule: str | None = None,
        schedule_options: dict[str, float] | None = None,
        conditioning: str | None = None,
    ) -> SEDD:
        """Build the method with a new network for ids 0..tokens-1; a mask has the id `tokens`."""
        conditioning, graph = conditioning or cls.default_conditioning, graph or cls.default_graph
        ordered = options_for(network, cls.reads).ordered
        problem = "is 'logistic', but sedd learns ratios, which are no distribution"
        require(not ordered, "network.options.levels_head", problem, "leave it out")
        states = make_graph(graph, tokens).states
        sizes = {"vocab_size": states, "output_size": tokens, "time": conditioning != "none"}
        chosen = make_schedule(schedule or cls.default_schedule, **(schedule_options or {}))
        return cls(
            new_network(network, cls.reads, **sizes),
            graph=graph,
            schedule=chosen,
            conditioning=conditioning,
        )

    @property
    def mask_id(self) -> int:
        """The mask; for graphs without one, the id after all states, for unknown tokens."""
        return self.graph.states if self.graph.mask_id is None else self.graph.mask_id

    @property
    def vocab_size(self) -> int:
        return max(self.graph.states, self.mask_id + 1)

    @property
    def timed(self) -> bool:
        return self.conditioning != "none"

    # Scores -------------------------------------------------------------------------------------

    def parameterize(
        self, output: Float[Tensor, "*n C"], x: Int64[Tensor, "*n"], sigma: Float[Tensor, "*n"]
    ) -> Float[Tensor, "*n C"]:
        """The network's output as log s(x)_y; 0 at y = x if there is such an entry."""
        output = output.to(torch.promote_types(output.dtype, torch.float32))
        output = output - self.graph.log_scale(sigma)[..., None].to(output.dtype)
        if output.shape[-1] < self.graph.states:  # no entry for the mask, and x is the mask
            return output
        return output.scatter(-1, x[..., None], 0.0)

    def log_score(
        self,
        tokens: Tokens,
        time: RowTimes,
        rows: Indices,
        positions: Indices,
        label: Labels | None = None,
        *,
        layout: Layout = DENSE,
    ) -> Float[Tensor, "N S"]:
        """log s(x)_y for every state y at the (row, position) pairs.

        Under the absorbing graph it is meaningful only at masks: no other position changes.
        """
        queries = Queries(rows, positions)
        log_score = self._scores(tokens, time, queries, label, layout)
        return F.pad(log_score, (0, self.graph.states - log_score.shape[-1]))

    def _scores(
        self, x: Tensor, time: Tensor, queries: Queries, label: Tensor | None, layout: Layout
    ) -> Tensor:
        sigma = total_noise(self.schedule, time.double())
        scalar = {"none": None, "sigma": sigma.float(), "time": (TIME_SCALE * time).float()}
        conditions = {"scalar": scalar[self.conditioning], "label": label}
        output = self.logits(x, layout, queries=queries, **conditions)
        return self.parameterize(output, x[queries.rows, queries.positions], sigma[queries.rows])

    # The loss -----------------------------------------------------------------------------------

    def loss(self, batch: Batch, noise: Noise, step: int = 0) -> Loss:
        """Draw a time for each row, add noise to its tokens, and take the weighted score entropy.

        `noise.samples` numbers the rows within a global batch, which share one low-discrepancy set
        of times. Padding gets no noise and never counts. The sum over a sequence is an unbiased
        estimate of the bound, end terms included.
        """
        blank = 0 if self.graph.mask_id is None else self.graph.mask_id
        batch = check_batch(batch, self).padded_with(blank)
        time = positive_time(even_times(noise, step, batch.size))
        state = self.graph.noised(batch.tokens, self._noise_drawn(time), batch.real, noise, step)
        return self.loss_given(batch, Noised(state, time))

    def _noise_drawn(self, time: RowTimes) -> Float[Tensor, "B"]:
        """The noise at the given times, of the process that ends exactly in the prior."""
        last = total_noise(self.schedule, torch.ones_like(time))
        return self.graph.noise_to_prior(total_noise(self.schedule, time), last)

    def loss_given(self, batch: Batch, drawn: Noised) -> Loss:
        """The loss for given noisy tokens."""
        tokens, real, (state, time) = batch.tokens, batch.real, drawn
        counted = self.graph.moving(state) & real
        queries = Queries(*counted.nonzero(as_tuple=True))
        log_score = self._scores(state, time, queries, batch.label, batch.layout())
        x, x0 = (held[queries.rows, queries.positions] for held in (state, tokens))
        sigma = total_noise(self.schedule, time.double())[queries.rows]
        nats = self.graph.score_entropy(log_score, x, x0, sigma).to(log_score.dtype)
        entropy = nats.new_zeros(tokens.shape).index_put((queries.rows, queries.positions), nats)
        weights = noise_rate(self.schedule, time.double())[:, None].to(nats.dtype)
        per_token = torch.where(real, entropy * weights + self.end_nats(tokens).to(nats), 0.0)
        count = real.sum()
        return Loss(per_token.sum() / count, per_token, entropy, counted, count)

    def end_nats(self, tokens: Tokens) -> Float[Tensor, "B L"]:
        """Prior and reconstruction terms of each token; they do not depend on the network."""
        ends = torch.tensor([0.0, 1.0], dtype=torch.float64, device=tokens.device)
        first, last = total_noise(self.schedule, ends)
        return self.graph.end_nats(tokens, first.expand(tokens.shape), last.expand(tokens.shape))


@METHODS.register("sedd-uniform")
class UniformSEDD(SEDD):
    """SEDD under the uniform chain: tokens become other tokens, and may change more than once."""

    about = replace(SEDD.about, loss="denoising score entropy, weighted to a bound; uniform noise")
    default_graph = "uniform"
