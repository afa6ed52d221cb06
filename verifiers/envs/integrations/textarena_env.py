"""`TextArenaEnv`: the text games of the `textarena` package, played offline."""

from __future__ import annotations

import copy
import importlib.resources
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from verifiers.decorators import cleanup
from verifiers.envs.hooks import call_hook
from verifiers.envs.integrations.gym_env import RowsOnDemand
from verifiers.envs.multiturn_env import MultiTurnEnv
from verifiers.errors import ConfigError
from verifiers.parsers.parser import Parser
from verifiers.parsers.xml_parser import XMLParser
from verifiers.rubrics.rubric import Rubric
from verifiers.state import State
from verifiers.tasks import Row
from verifiers.types import Messages, UserMessage

WORD_FILE = "common_words.txt"


@cache
def common_words() -> tuple[str, ...]:
    """Return common English words of four to nine letters, mostly five, in alphabetical order."""
    text = (
        importlib.resources.files("verifiers.envs.integrations")
        .joinpath(WORD_FILE)
        .read_text(encoding="utf-8")
    )
    return tuple(text.split())


def _words(fileids: str | None = None) -> list[str]:
    return list(common_words())


def _as_nouns(tokens: list[str], *_: Any, **__: Any) -> list[tuple[str, str]]:
    # The games keep words with the tag "NN". All words of the list are suitable for guessing.
    return [(token, "NN") for token in tokens]


def _not_downloaded(*_: Any, **__: Any) -> bool:
    return True


@contextmanager
def offline_nltk() -> Iterator[None]:
    """While the context is open, `nltk` offers `common_words` and downloads nothing. Afterwards it is as before.

    Modules that imported TextArena earlier hold the same corpus object, so the object is changed and not the name.
    """
    try:
        import nltk
        import nltk.corpus
    except ImportError:
        yield  # textarena depends on nltk, so the next import reports that textarena is missing
        return
    corpus, download, pos_tag = vars(nltk.corpus.words), nltk.download, nltk.pos_tag
    before = corpus.get("words")
    corpus["words"], nltk.download, nltk.pos_tag = _words, _not_downloaded, _as_nouns
    for name, module in list(sys.modules.items()):
        if name.startswith("textarena.envs.") and "pos_tag" in vars(module):
            vars(module)["pos_tag"] = _as_nouns
    try:
        yield
    finally:
        nltk.download, nltk.pos_tag = download, pos_tag
        if before is None:
            del corpus["words"]
        else:
            corpus["words"] = before


MODEL_PLAYER = 0
"""The player that the model plays."""
MAX_OPPONENT_MOVES = 1_000
"""Number of successive moves of other players after which a game counts as stuck."""


class TextArenaGame:
    """One game. TextArena draws from Python's global generator. Each game here has a separate state of that generator,
    so concurrent games affect neither each other nor the program, and equal seeds give equal games.
    """

    def __init__(self, env: Any, seed: int) -> None:
        self.env = env
        self._random_state = random.Random(seed).getstate()

    @contextmanager
    def _own_random(self) -> Iterator[None]:
        outside = random.getstate()
        random.setstate(self._random_state)
        try:
            yield
        finally:
            self._random_state = random.getstate()
            random.setstate(outside)

    def reset(self, num_players: int, seed: int) -> None:
        """Start the game. Raises ConfigError if the game needs another number of players."""
        with self._own_random():
            try:
                self.env.reset(num_players=num_players, seed=seed)
            except (AssertionError, ValueError, FileNotFoundError) as error:
                raise ConfigError(
                    f"This game cannot be started with {num_players} player(s): {error}. "
                    "If it needs more players, pass num_players, and an opponent for the others."
                ) from error

    def observation(self) -> tuple[int, str]:
        """Return the player whose turn it is, and the observation of that player."""
        with self._own_random():
            player, observation = self.env.get_observation()
        return player, observation if isinstance(observation, str) else _joined(observation)

    def step(self, action: str) -> bool:
        """Make a move. Return whether the game is over."""
        with self._own_random():
            done, _ = self.env.step(action=action)
        return bool(done)

    def outcome(self) -> tuple[float, str]:
        """Return the model's reward and the reason for the end. Call this once, at the end."""
        with self._own_random():
            rewards, info = self.env.close()
        reason = (info or {}).get(MODEL_PLAYER, {}).get("reason")
        return float((rewards or {}).get(MODEL_PLAYER, 0.0)), reason or "The game is over."


def _joined(observations: Sequence[Any]) -> str:
    return "\n".join(str(one[1]) for one in observations)


def game_reward(state: State) -> float:
    """Return the reward that the game gave the model; 0.0 if the game did not end."""
    return float(state.get("ta_reward") or 0.0)


def _same(observation: str) -> str:
    return observation


class TextArenaEnv(MultiTurnEnv):
    """Plays a TextArena game, one move per turn. Without a `rubric`, the reward of the game is the reward of the
    rollout.

    `feedback_fn` converts an observation, which repeats the whole game, into the text for the model. Games with a
    secret word take it from `answer` of the row; all other games are set up by the seed of the row. The words come
    from a list in this library instead of NLTK's downloads, so that nothing is downloaded and every machine plays
    the same games. Games of several players need `num_players` and an `opponent`: a function, sync or async, from
    the observation of the current player to a move. The model is player 0.
    """

    def __init__(
        self,
        game: str = "Wordle-v0",
        num_train_examples: int = 1000,
        num_eval_examples: int = 0,
        system_prompt: str | None = None,
        parser: Parser | None = None,
        rubric: Rubric | None = None,
        feedback_fn: Callable[[str], str] = _same,
        seed: int = 0,
        *,
        num_players: int = 1,
        opponent: Callable[[str], Any] | None = None,
        game_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if num_players > 1 and opponent is None:
            raise ConfigError(f"A game of {num_players} players needs an opponent=…")
        self.game = game
        self.num_train_examples = num_train_examples
        self.num_eval_examples = num_eval_examples
        self.feedback_fn = feedback_fn
        self.seed = seed
        self.num_players = num_players
        self.opponent = opponent
        self.ta_env = make_game(game, game_kwargs or {})
        self.shared_memo = self.build_shared_memo(self.ta_env)
        self._game(seed).reset(num_players, seed)  # reports a wrong number of players now
        parser = parser or XMLParser(fields=["think", "guess"], answer_field="guess")
        dataset, eval_dataset = self.ta_to_hf()
        super().__init__(
            dataset=dataset,
            eval_dataset=eval_dataset,
            system_prompt=system_prompt,
            parser=parser,
            rubric=rubric or Rubric(funcs=[game_reward], parser=parser),
            message_type="chat",
            **kwargs,
        )

    # ----------------------------------------------------------------------------------------------- the games

    @staticmethod
    def build_shared_memo(ta_env: Any) -> dict[int, Any]:
        """Return the word lists and dictionaries of a game. Copies share them, because copying takes longer than a
        game.
        """
        inner = _innermost(ta_env)
        return {id(value): value for value in vars(inner).values() if _is_word_list(value)}

    def _game(self, seed: int) -> TextArenaGame:
        return TextArenaGame(copy.deepcopy(self.ta_env, dict(self.shared_memo)), seed)

    def ta_to_hf(self) -> tuple[Sequence[Row] | None, Sequence[Row] | None]:
        """Return training and evaluation rows, which have no seed and no secret word in common."""
        if self.num_train_examples < 0 or self.num_eval_examples < 0:
            raise ConfigError("num_train_examples and num_eval_examples must not be negative.")
        train_words, eval_words = self._split_words()
        train = self._rows(0, self.num_train_examples, train_words)
        evaluation = self._rows(self.num_train_examples, self.num_eval_examples, eval_words)
        return train or None, evaluation or None

    def _rows(self, first: int, count: int, words: Sequence[str]) -> RowsOnDemand:
        def game(index: int) -> Row:
            word = words[(index - first) % len(words)] if words else None
            return self.game_row(self.seed + index, word)

        return RowsOnDemand(game, first, count)

    def _split_words(self) -> tuple[list[str], list[str]]:
        words = getattr(_innermost(self.ta_env), "word_list", None)
        trial = self._game(self.seed)
        trial.reset(self.num_players, self.seed)
        if not words or "secret_word" not in (trial.env.state.game_state or {}):
            return [], []
        shuffled = sorted(set(words))
        random.Random(self.seed).shuffle(shuffled)
        held_out = min(self.num_eval_examples, max(1, len(shuffled) // 5))
        return shuffled[held_out:], shuffled[:held_out]

    def game_row(self, seed: int, secret_word: str | None) -> Row:
        """Return the row of one game: the first observation of the model, the secret word if there is one, and the
        seed.
        """
        game = self._game(seed)
        game.reset(self.num_players, seed)
        _, observation = game.observation()
        return {
            "question": observation,
            "answer": secret_word or "",
            "info": {"game": self.game, "seed": seed},
        }

    # ---------------------------------------------------------------------------------------------- the rollout

    async def setup_state(self, state: State, **kwargs: Any) -> State:
        """Set up the game of the row. Other players move first if it is their turn."""
        seed = state["info"]["seed"]
        game = self._game(seed)
        game.reset(self.num_players, seed)
        if state.get("answer"):
            game.env.state.game_state["secret_word"] = state["answer"]
        state["ta_game"], state["ta_env"] = game, game.env
        state["ta_reward"] = None
        await self._let_others_move(game)
        return state

    async def _let_others_move(self, game: TextArenaGame) -> tuple[bool, str]:
        """Play until it is the model's turn. Return whether the game is over, and the observation of the model."""
        for _ in range(MAX_OPPONENT_MOVES):
            player, observation = game.observation()
            if player == MODEL_PLAYER or self.opponent is None:
                return False, observation
            if game.step(str(await call_hook(self.opponent, observation))):
                return True, observation
        raise ConfigError(
            f"{self.game}: the opponent made {MAX_OPPONENT_MOVES} moves in a row without a turn of the model."
        )

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """Make the model's move. Return the next observation, or how the game ended."""
        game: TextArenaGame = state["ta_game"]
        # Only the last message: a response without a move is an invalid move, not a repetition of the previous one.
        guess = self.parser.parse_answer(messages[-1:])
        move = str(guess) if guess is not None else self.parser.last_model_text(messages[-1:]) or ""
        done, observation = game.step(move), ""
        if not done:
            done, observation = await self._let_others_move(game)
        if not done:
            return [UserMessage.of({"role": "user", "content": self.feedback_fn(observation)})]
        state["ta_reward"], reason = game.outcome()
        said: Messages = [UserMessage.of({"role": "user", "content": reason})]
        state.final_env_response = said
        return said

    @cleanup
    async def cleanup_ta_env(self, state: State) -> None:
        """Remove the game from the state, because it cannot be saved."""
        state.pop("ta_game", None)
        state.pop("ta_env", None)


def make_game(game: str, game_kwargs: Mapping[str, Any]) -> Any:
    """Return a TextArena game. Raises ConfigError if the package is missing, or if the game does not exist or load."""
    with offline_nltk(), warnings.catch_warnings():
        # Python reports regular expressions of some games when it first compiles them.
        warnings.simplefilter("ignore", SyntaxWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            import textarena
        except ImportError as error:
            raise ConfigError(
                "TextArenaEnv needs the `textarena` package: pip install 'textarena>=0.7'."
            ) from error
        from difflib import get_close_matches

        from textarena.envs.registration import ENV_REGISTRY

        if game not in ENV_REGISTRY:
            near = get_close_matches(game, ENV_REGISTRY, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"TextArena has no game {game!r}.{hint}")
        try:
            return textarena.make(game, **game_kwargs)
        except (ImportError, SyntaxError, FileNotFoundError, TypeError, ValueError) as error:
            raise ConfigError(
                f"TextArena cannot create {game!r} here: {type(error).__name__}: {error}"
            ) from error


def _innermost(ta_env: Any) -> Any:
    while "env" in vars(ta_env):
        ta_env = ta_env.env
    return ta_env


def _is_word_list(value: Any) -> bool:
    if type(value).__name__ == "EnglishDictionary":
        return True
    return (
        isinstance(value, list | tuple | set | frozenset)
        and len(value) > 100
        and all(isinstance(word, str) for word in value)
    )
